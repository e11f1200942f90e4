//! A minimal owner of a log, for tests of single parts of the kit: it keeps only the locations where its
//! entries committed.

use block::{BlockSize, Data, DevicePart, Error, Payload, Result, Zones, ZonesPart};
use disks::ram::RamPart;
use logkit::checkpoint::{self, Cut};
use logkit::cleaning::{Greedy, Policy};
use logkit::record::sum_of;
use logkit::{Appender, Entry, Kit, Layout, Mover, Owner, Piece, Settings, StreamId, Victim, lane, recovery};
use runtime::sync::Notify;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

pub const USER: StreamId = StreamId(0);
pub const CLEANER: StreamId = StreamId(1);
/// Class of the cleaner's zones.
pub const MOVED: u8 = 1;
pub const KIND: [u8; 8] = *b"bare    ";
/// Number of lanes of a shard, unless a test says otherwise.
pub const LANES: u32 = 2;
const BLOCK: usize = 4096;

/// An entry with data and meta of any length.
#[derive(Debug)]
pub struct Item {
    data: Payload,
    meta: usize,
    frees: bool,
    is_acknowledged: bool,
    /// Whether it has committed or was refused.
    has_ended: Rc<Cell<bool>>,
}

impl Item {
    /// Creates an entry of `blocks` blocks, filled with `number` plus the block's index, and `meta` bytes of
    /// meta.
    pub fn new(number: u8, blocks: u32, meta: usize) -> Self {
        let bytes: Vec<u8> =
            (0..blocks as usize * BLOCK).map(|at| number.wrapping_add((at / BLOCK) as u8)).collect();
        Item {
            data: Data::copy_of(&bytes).into(),
            meta,
            frees: false,
            is_acknowledged: false,
            has_ended: Rc::default(),
        }
    }

    /// The entry, which frees more space than it takes.
    pub fn freeing(self) -> Self {
        Item { frees: true, ..self }
    }

    /// The entry, which was acknowledged.
    pub fn acknowledged(self) -> Self {
        Item { is_acknowledged: true, ..self }
    }

    fn sums(&self) -> Vec<u32> {
        self.data.to_data().chunks_exact(BLOCK).map(sum_of).collect()
    }
}

impl Entry for Item {
    fn blocks(&self) -> u32 {
        (self.data.len() / BLOCK) as u32
    }

    fn payload(&self) -> &Payload {
        &self.data
    }

    fn meta_length(&self) -> usize {
        self.meta
    }

    fn encode_meta(&self, meta: &mut Vec<u8>) {
        meta.resize(meta.len() + self.meta, 7);
    }

    fn is_atomic(&self) -> bool {
        true
    }

    fn frees_space(&self) -> bool {
        self.frees
    }

    fn is_acknowledged(&self) -> bool {
        self.is_acknowledged
    }
}

/// Events of entries, in order.
#[derive(Debug, Default)]
pub struct Seen {
    /// Zone, first data block and checksums of each written record.
    pub sums: Vec<(u32, u32, Vec<u32>)>,
    /// Zone, first data block and checksums of each committed entry.
    pub committed: Vec<(u32, u32, Vec<u32>)>,
    /// Errors of refused entries.
    pub refused: Vec<Error>,
}

/// The minimal owner.
pub struct Bare {
    kit: Rc<Kit>,
    appender: Appender<Item>,
    pub seen: RefCell<Seen>,
    changed: Notify,
}

impl Bare {
    /// Creates a log on these zones.
    pub async fn format(zones: Rc<dyn Zones>, prepare_zones: bool) -> Result<Rc<Self>> {
        Self::with_policy(zones, prepare_zones, Box::new(Greedy)).await
    }

    /// Creates a log on these zones, with the classes of a policy.
    pub async fn with_policy(
        zones: Rc<dyn Zones>,
        prepare_zones: bool,
        policy: Box<dyn Policy>,
    ) -> Result<Rc<Self>> {
        Self::with_shards(zones, prepare_zones, policy, 2, LANES).await
    }

    /// Creates a log on these zones, with streams for this number of shards, which have this number of lanes
    /// each.
    pub async fn with_shards(
        zones: Rc<dyn Zones>,
        prepare_zones: bool,
        policy: Box<dyn Policy>,
        shards: u16,
        lanes: u32,
    ) -> Result<Rc<Self>> {
        let layout = Layout::new(zones.geometry(), BlockSize::default())?;
        let (pool, identity) = recovery::format(&*zones, &layout).await?;
        let parts = recovery::create(layout, pool, identity, 2 * usize::from(shards), KIND, Vec::new());
        let own = [USER, CLEANER];
        let settings = Self::settings(&layout, own, lanes, prepare_zones);
        let classes = policy.classes();
        let kit = Kit::new(parts, zones, settings, policy, &own);
        let owner = Self::on(kit, classes, own);
        owner.take_checkpoint(false).await?;
        Ok(owner)
    }

    /// Another shard of a log, on the same shard of the runtime.
    pub fn join(home: &Bare, policy: Box<dyn Policy>) -> Rc<Self> {
        Self::join_as(home, 1, policy)
    }

    /// The shard with this number, on the same shard of the runtime.
    pub fn join_as(home: &Bare, shard: u16, policy: Box<dyn Policy>) -> Rc<Self> {
        let own = [StreamId(2 * shard), StreamId(2 * shard + 1)];
        let settings = Self::settings(&home.kit.layout, own, home.kit.settings.appends_in_flight, false);
        let classes = policy.classes();
        let kit = Kit::join(home.kit.peer(), home.kit.zones.clone(), settings, policy, &own);
        Self::on(kit, classes, own)
    }

    fn on(kit: Rc<Kit>, classes: u8, own: [StreamId; 2]) -> Rc<Self> {
        let lanes = kit.settings.appends_in_flight;
        let appender = Appender::new(kit.layout, classes, lanes, u64::MAX, &kit.streams, &own);
        Rc::new(Bare { kit, appender, seen: RefCell::default(), changed: Notify::new() })
    }

    fn settings(
        layout: &Layout,
        [user_stream, cleaner_stream]: [StreamId; 2],
        appends_in_flight: u32,
        prepare_zones: bool,
    ) -> Settings {
        Settings {
            user_stream,
            cleaner_stream,
            appends_in_flight,
            data_blocks: layout.data_blocks(0),
            record_blocks: layout.record_blocks(0),
            cleaner_reserve: 3,
            checkpoint_blocks: u64::MAX,
            low_watermark: 0.0,
            high_watermark: 0.0,
            most_steps: u64::MAX,
            read_request_bytes: logkit::READ_REQUEST_BYTES,
            prepare_zones,
        }
    }

    /// Appends an entry of users, and waits until it, or another one, has committed or was refused.
    pub async fn append(&self, item: Item) {
        self.append_to(0, item).await;
    }

    /// Appends an entry of users to zones of a class, and waits until it, or another one, has committed or
    /// was refused.
    pub async fn append_to(&self, class: u8, item: Item) {
        let ended = || self.seen.borrow().committed.len() + self.seen.borrow().refused.len();
        let before = ended();
        lane::push(self, class, item);
        self.kit.events.work.notify_one();
        while ended() == before {
            self.changed.notified().await;
        }
    }

    /// Appends an entry of users, and waits until it, and no other one, has committed or was refused.
    pub async fn append_alone(&self, item: Item) {
        let has_ended = item.has_ended.clone();
        lane::push(self, 0, item);
        self.kit.events.work.notify_one();
        while !has_ended.get() {
            self.changed.notified().await;
        }
    }

    /// Ends the lanes.
    pub async fn close(&self) {
        self.kit.begin_closing();
        self.kit.tasks.ended().await;
    }
}

impl Owner for Bare {
    type Entry = Item;
    type Name = ();

    fn kit(&self) -> &Rc<Kit> {
        &self.kit
    }

    fn appender(&self) -> &Appender<Item> {
        &self.appender
    }

    fn commit(&self, entries: &[Item], zone: u32, mut position: u32) {
        for entry in entries {
            self.seen.borrow_mut().committed.push((zone, position, entry.sums()));
            self.kit.pool.add_live(zone, entry.blocks());
            position += entry.blocks();
            entry.has_ended.set(true);
        }
        self.changed.notify_all();
    }

    fn refuse(&self, entry: &Item, error: &Error) {
        entry.has_ended.set(true);
        self.seen.borrow_mut().refused.push(error.clone());
        self.changed.notify_all();
    }

    fn answer(&self, entry: &mut Item, error: &Error) {
        self.refuse(entry, error);
    }

    fn note_sums(&self, zone: u32, position: u32, sums: &[u32]) {
        self.seen.borrow_mut().sums.push((zone, position, sums.to_vec()));
    }

    fn checkpoint_cost(&self) -> u64 {
        2
    }

    fn checkpoint_zones(&self) -> u32 {
        1
    }

    async fn take_checkpoint(self: &Rc<Self>, clean: bool) -> Result<()> {
        checkpoint::take(self, async || {
            let cut = Cut::now(&self.kit);
            checkpoint::commit(self, cut, &[], clean).await
        })
        .await
    }

    async fn live(&self, _victim: &Victim) -> Result<Vec<Piece<()>>> {
        Ok(Vec::new())
    }

    fn still_live(&self, _victim: &Victim, _piece: &Piece<()>, _visit: &mut dyn FnMut(u32, u32)) {}

    async fn relocate(
        self: &Rc<Self>,
        _victim: &Victim,
        _class: u8,
        _pieces: Vec<(Piece<()>, Data)>,
        _mover: &mut Mover,
    ) -> Result<()> {
        Ok(())
    }
}

/// Creates zones of this size on a disk in memory.
pub async fn zones(zones: u64, zone_size: u64, max_open: u32) -> Result<Arc<dyn ZonesPart>> {
    zones_on(Arc::new(RamPart::new((zones + 1) * zone_size, BlockSize::default())?), zone_size, max_open)
        .await
}

/// Creates zones of this size on a disk.
pub async fn zones_on(
    disk: Arc<dyn DevicePart>,
    zone_size: u64,
    max_open: u32,
) -> Result<Arc<dyn ZonesPart>> {
    let options = zones::on_device::Options {
        format: true,
        zone_size: Some(zone_size),
        max_open,
        ..Default::default()
    };
    Ok(Arc::new(zones::OnDevice::open(disk, options).await?))
}

/// Runs a test on one shard.
pub fn run<T: Send + 'static, Fut: Future<Output = Result<T>> + 'static>(
    main: impl FnOnce() -> Fut + Send + 'static,
) -> T {
    runtime::run(runtime::Config::default(), main)
        .expect("the runtime starts")
        .unwrap_or_else(|error| panic!("{error}"))
}
