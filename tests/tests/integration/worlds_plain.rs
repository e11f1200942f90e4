//! Simulated worlds on a plain file, which keeps a device's promises; on layers without state (`linear`,
//! `stripe`, `model`) over such files; and on files and layers that break the promises, which must be
//! noticed.

use block::{BlockRange, DevicePart, Result};
use layers::fault::{FaultDevicePart, parse_rules};
use layers::linear::{linear, part_of};
use layers::model::{ModelPart, profile};
use layers::stripe::stripe;
use runtime::Random;
use siltstone_tests::stacked::Stacked;
use siltstone_tests::worlds::{
    Change, Disks, File, Finds, Life, Loss, Stop, Subject, keeps_its_promises, pick, try_seed,
};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

/// A defect of a file.
trait Defect: Debug + Clone + Send + Sync + 'static {
    const RULES: &[&str] = &[];
    const LOSS: Option<(Change, Finds)> = None;
}

#[derive(Debug, Clone)]
struct Plain<D> {
    bytes: u64,
    shards: usize,
    defect: PhantomData<D>,
}

impl<D: Defect> Subject for Plain<D> {
    type Part = FaultDevicePart;
    type Memory = ();

    fn draw(random: &mut Random) -> Self {
        let (bytes, shards) = ((1 + random.below(64)) * 4096, 1 + random.below(2) as usize);
        Plain { bytes, shards, defect: PhantomData }
    }

    fn files(&self) -> Vec<File> {
        // `fault` tears a write inside a larger block by writing the rest of the block as it was read before,
        // over data that another request may have written meanwhile.
        vec![File { path: "/disk", bytes: self.bytes, sector: 512 }]
    }

    fn shards(&self) -> usize {
        self.shards
    }

    async fn open(&self, disks: &Disks, life: &Life) -> Result<Arc<FaultDevicePart>> {
        let rules: Vec<String> = D::RULES.iter().map(|rule| (*rule).to_owned()).collect();
        let rules = parse_rules(&rules, stack::Contract::Device)?;
        Ok(Arc::new(FaultDevicePart::new(disks.open(0).await?, rules, life.seed)?))
    }

    /// Nothing formats a file.
    fn format_leaves(&self) -> Option<Stop> {
        Some(Stop::Orderly)
    }

    fn losses(&self, _memory: &()) -> Vec<Loss> {
        D::LOSS.into_iter().map(|(change, finds)| Loss { file: 0, change, finds }).collect()
    }

    async fn survivors(
        &self,
        disks: &Disks,
        _loss: &Loss,
        _stop: Stop,
    ) -> Result<(Arc<dyn DevicePart>, Stop)> {
        Ok((disks.open(0).await?, Stop::PowerCut))
    }
}

macro_rules! defects {
    ($($(#[$doc:meta])* $name:ident { $($constant:tt)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone)]
            struct $name;
            impl Defect for $name { $($constant)* }
        )*
    };
}

defects! {
    Nothing {}
    Lies { const RULES: &[&str] = &["flush lie"]; }
    Drops { const RULES: &[&str] = &["write drop probability=0.02"]; }
    Strays { const RULES: &[&str] = &["write misdirect by=1 blocks probability=0.02"]; }
    Rots { const RULES: &[&str] = &["read corrupt probability=0.02"]; }
    Lags { const LOSS: Option<(Change, Finds)> = Some((Change::Lags, Finds::Everything)); }
    Zeros { const LOSS: Option<(Change, Finds)> = Some((Change::Zeros, Finds::Everything)); }
    /// The file doesn't notice the damage, so opening and reading succeed.
    RotsBetween { const LOSS: Option<(Change, Finds)> = Some((Change::Rots { places: 9, below: u64::MAX }, Finds::ErrorOrTruth(Stop::PowerCut))); }
    /// Opening the file doesn't fail.
    Opens { const LOSS: Option<(Change, Finds)> = Some((Change::Zeros, Finds::Nothing("lost"))); }
}

#[test]
fn a_file_keeps_its_promises_in_simulated_worlds() {
    keeps_its_promises::<Plain<Nothing>>(2, 300);
}

fn is_found_out<D: Defect>() {
    let found = (1..=40).find_map(|seed| Some((seed, try_seed::<Plain<D>>(seed, false).err()?)));
    let (seed, broken) = found.expect("a defect that no seed of 40 finds");
    println!("seed {seed}: {broken}");
}

#[test]
fn defects_are_found_out() {
    is_found_out::<Lies>();
    is_found_out::<Drops>();
    is_found_out::<Strays>();
    is_found_out::<Rots>();
    is_found_out::<Lags>();
    is_found_out::<Zeros>();
    is_found_out::<RotsBetween>();
    is_found_out::<Opens>();
}

/// A layer over files, constant over all lives of a seed.
trait Layer: Debug + Clone + Send + Sync + 'static {
    /// Draws a layer and the sizes of its files, in blocks.
    fn draw(random: &mut Random) -> (Self, Vec<u64>);

    fn over(&self, files: Vec<Arc<dyn DevicePart>>, life: &Life) -> Result<Arc<dyn DevicePart>>;
}

#[derive(Debug, Clone)]
struct Layered<L> {
    layer: L,
    blocks: Vec<u64>,
    shards: usize,
}

const PATHS: [&str; 4] = ["/a", "/b", "/c", "/d"];

impl<L: Layer> Subject for Layered<L> {
    type Part = Stacked;
    type Memory = ();

    fn draw(random: &mut Random) -> Self {
        let shards = pick(random, &[1, 1, 2]);
        let (layer, blocks) = L::draw(random);
        Layered { layer, blocks, shards }
    }

    fn files(&self) -> Vec<File> {
        let file = |(path, blocks): (&&'static str, &u64)| File { path, bytes: blocks * 4096, sector: 512 };
        PATHS.iter().zip(&self.blocks).map(file).collect()
    }

    fn shards(&self) -> usize {
        self.shards
    }

    async fn open(&self, disks: &Disks, life: &Life) -> Result<Arc<Stacked>> {
        let mut files = Vec::new();
        for number in 0..self.blocks.len() {
            files.push(disks.open(number).await?);
        }
        Ok(Arc::new(Stacked::new(self.layer.over(files, life)?, Vec::new())))
    }

    /// Nothing formats the files.
    fn format_leaves(&self) -> Option<Stop> {
        Some(Stop::Orderly)
    }
}

/// The files one after the other; `left_out` blocks at the beginning of the first one aren't used.
#[derive(Debug, Clone)]
struct Linear {
    left_out: u64,
}

impl Layer for Linear {
    fn draw(random: &mut Random) -> (Self, Vec<u64>) {
        let blocks: Vec<u64> = (0..1 + random.below(4)).map(|_| 1 + random.below(40)).collect();
        (Linear { left_out: random.below(blocks[0] * 8) }, blocks)
    }

    fn over(&self, mut files: Vec<Arc<dyn DevicePart>>, _life: &Life) -> Result<Arc<dyn DevicePart>> {
        let rest = files[0].geometry().blocks.0 - self.left_out;
        files[0] = Arc::new(part_of(files[0].clone(), BlockRange::new(self.left_out, rest))?);
        Ok(Arc::new(linear(files)?))
    }
}

#[derive(Debug, Clone)]
struct Stripe {
    chunk_size: u64,
    /// Broken on purpose: after the first life the order of the files is another.
    turns: bool,
}

impl Layer for Stripe {
    fn draw(random: &mut Random) -> (Self, Vec<u64>) {
        let blocks = (0..2 + random.below(3)).map(|_| 4 + random.below(30)).collect();
        (Stripe { chunk_size: pick(random, &[512, 4096, 16384]), turns: false }, blocks)
    }

    fn over(&self, mut files: Vec<Arc<dyn DevicePart>>, life: &Life) -> Result<Arc<dyn DevicePart>> {
        if self.turns && !life.format {
            files.rotate_left(1);
        }
        Ok(Arc::new(stripe(files, self.chunk_size)?))
    }
}

/// See [`Stripe::turns`].
#[derive(Debug, Clone)]
struct Turned(Stripe);

impl Layer for Turned {
    fn draw(random: &mut Random) -> (Self, Vec<u64>) {
        let (stripe, blocks) = Stripe::draw(random);
        (Turned(Stripe { turns: true, ..stripe }), blocks)
    }

    fn over(&self, files: Vec<Arc<dyn DevicePart>>, life: &Life) -> Result<Arc<dyn DevicePart>> {
        self.0.over(files, life)
    }
}

/// A device model, with and without moving parts; a different one in each life.
#[derive(Debug, Clone)]
struct Model;

impl Layer for Model {
    fn draw(random: &mut Random) -> (Self, Vec<u64>) {
        (Model, vec![1 + random.below(64)])
    }

    fn over(&self, files: Vec<Arc<dyn DevicePart>>, life: &Life) -> Result<Arc<dyn DevicePart>> {
        let known: Vec<_> = profile::known()?.into_iter().collect();
        let (name, profile) = known[life.seed as usize % known.len()].clone();
        Ok(Arc::new(ModelPart::new(files[0].clone(), &name, profile, life.seed)))
    }
}

#[test]
fn linear_keeps_its_promises_in_simulated_worlds() {
    keeps_its_promises::<Layered<Linear>>(1, 150);
}

#[test]
fn stripe_keeps_its_promises_in_simulated_worlds() {
    keeps_its_promises::<Layered<Stripe>>(1, 150);
}

#[test]
fn model_keeps_its_promises_in_simulated_worlds() {
    keeps_its_promises::<Layered<Model>>(1, 150);
}

#[test]
fn a_stripe_whose_devices_change_places_is_found_out() {
    let found = (1..=40).find_map(|seed| Some((seed, try_seed::<Layered<Turned>>(seed, false).err()?)));
    let (seed, broken) = found.expect("a defect that no seed of 40 finds");
    println!("seed {seed}: {broken}");
}
