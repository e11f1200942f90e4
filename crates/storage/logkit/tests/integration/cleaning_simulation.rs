//! Costs of the cleaning policies, in a log without any I/O.
//!
//! `cargo test --workspace cleaning_simulation:: -- --nocapture` prints the tables of the book's page on
//! cleaning and checks its statements about them. Write amplification is blocks written per block that a user
//! wrote, over ten volumes of overwrites, after the volume was filled in order and overwritten four times
//! without measurement. "Full" is live data over the capacity for data: all zones except the headroom that
//! the pacer keeps for the default policy (nine of 256). All policies get the same zones and the same data.

mod log;
mod workload;

use block::ZoneIndex;
use log::{Counts, Knowledge, Log};
use logkit::cleaning::pacing::SPAN;
use logkit::cleaning::{self, Arrival, Candidate, Limit, Marks, Parameters, Policy, Pressure};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use workload::{Draw, Workload};

const SEED: u64 = 16;
const ZONES: u32 = 256;
const ZONE_BLOCKS: u32 = 256;
const UNMEASURED: u64 = 4;
const MEASURED: u64 = 10;

const ZIPF: Workload = Workload::Zipf(0.99);
const HOT_COLD: Workload = Workload::HotCold { blocks: 0.1, writes: 0.9 };

/// One run.
#[derive(Debug, Clone, Copy)]
struct Run {
    policy: &'static str,
    parameters: Parameters,
    knowledge: Knowledge,
    workload: Workload,
    zones: u32,
    zone_blocks: u32,
    full: f64,
    /// Zones that the pacer keeps in addition to its usual number.
    waiting: u32,
    /// Zones by which the high watermark exceeds its usual value.
    span: u32,
}

impl Run {
    fn new(policy: &'static str, workload: Workload, full: f64) -> Run {
        Run {
            policy,
            parameters: parameters(ZONES),
            knowledge: Knowledge::Zones,
            workload,
            zones: ZONES,
            zone_blocks: ZONE_BLOCKS,
            full,
            waiting: 0,
            span: 0,
        }
    }

    /// The run on other zones, with the parameters for their number.
    fn on(self, zones: u32, zone_blocks: u32) -> Run {
        Run { zones, zone_blocks, parameters: parameters(zones), ..self }
    }

    fn policy(&self) -> Box<dyn Policy> {
        cleaning::make(self.policy, self.parameters).unwrap()
    }

    /// Number of users' blocks, with the headroom for the default policy left free.
    fn logical(&self) -> u32 {
        let classes = cleaning::make(cleaning::DEFAULT, parameters(self.zones)).unwrap().classes();
        let room = Marks::for_classes(u64::from(self.zone_blocks), classes, 0).high as u32;
        (f64::from(self.zones * self.zone_blocks - room) * self.full) as u32
    }

    fn run(&self) -> Counts {
        self.run_with(self.policy())
    }

    fn run_with(&self, policy: Box<dyn Policy>) -> Counts {
        let logical = self.logical();
        let mut log = self.filled(policy);
        let mut draw = Draw::new(self.workload, logical, SEED);
        (0..UNMEASURED * u64::from(logical)).for_each(|_| log.write(draw.next()));
        log.begin_measuring();
        (0..MEASURED * u64::from(logical)).for_each(|_| log.write(draw.next()));
        log.counts
    }

    fn filled(&self, policy: Box<dyn Policy>) -> Log {
        let mut marks = Marks::for_classes(u64::from(self.zone_blocks), policy.classes(), self.waiting);
        marks.high += u64::from(self.span * self.zone_blocks);
        let mut log = Log::new(policy, marks, self.zones, self.zone_blocks, self.logical(), self.knowledge);
        (0..self.logical()).for_each(|block| log.write(block));
        log
    }
}

/// Parameters for `zones` zones; a round of `threshold` reads as much as two zones.
fn parameters(zones: u32) -> Parameters {
    Parameters { read_at_once: 2 * u64::from(ZONE_BLOCKS), ..Parameters::for_zones(zones) }
}

/// Runs all of them on two threads; the results are in the order of `runs`.
fn all(runs: &[Run]) -> Vec<Counts> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(vec![Counts::default(); runs.len()]);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(at) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < runs.len())
                {
                    let counts = runs[at].run();
                    results.lock().unwrap()[at] = counts;
                }
            });
        }
    });
    results.into_inner().unwrap()
}

/// Prints a table: rows of a name and write amplifications.
fn print(title: &str, columns: &[String], rows: &[(String, Vec<f64>)]) {
    println!("\nseed {SEED}: {title}");
    println!("{:24}{}", "", columns.iter().map(|column| format!("{column:>18}")).collect::<String>());
    for (name, values) in rows {
        println!("{name:24}{}", values.iter().map(|value| format!("{value:>18.2}")).collect::<String>());
    }
}

/// Cleaning in log order: full = (u - 1) / ln u, write amplification = 1 / (1 - u). See the book.
fn log_order(full: f64) -> f64 {
    let (mut low, mut high) = (0.0_f64, 1.0_f64);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if (middle - 1.0) / middle.ln() < full { low = middle } else { high = middle }
    }
    1.0 / (1.0 - low)
}

#[test]
fn policies_compared() {
    if conformance::budget::is_left_out() {
        return;
    }
    let fulls = [0.70, 0.80, 0.85, 0.90];
    let mut cells: Vec<(Workload, f64)> = fulls.iter().map(|full| (Workload::Uniform, *full)).collect();
    cells.extend([(ZIPF, 0.80), (ZIPF, 0.90), (HOT_COLD, 0.80), (HOT_COLD, 0.90)]);
    let runs: Vec<Run> = cleaning::NAMES
        .into_iter()
        .flat_map(|policy| cells.iter().map(move |(workload, full)| Run::new(policy, *workload, *full)))
        .collect();
    let results = all(&runs);

    let columns: Vec<String> =
        cells.iter().map(|(workload, full)| format!("{} {:.0} %", workload.name(), full * 100.0)).collect();
    let mut rows = vec![("log order (formula)".to_owned(), fulls.map(log_order).to_vec())];
    for (policy, results) in cleaning::NAMES.into_iter().zip(results.chunks(cells.len())) {
        rows.push((policy.to_owned(), results.iter().map(Counts::amplification).collect()));
    }
    print("write amplification", &columns, &rows);
    let of = |policy: &str, cell: usize| {
        rows.iter().find(|(name, _)| name == policy).map(|(_, values)| values[cell]).unwrap()
    };

    for (cell, aim) in [1.88, 2.69, 3.52, 5.18].into_iter().enumerate() {
        assert!((log_order(fulls[cell]) - aim).abs() < 0.01, "the formula at {}", fulls[cell]);
        for policy in cleaning::NAMES {
            let measured = of(policy, cell);
            assert!(measured <= aim * 1.05, "{policy}, uniform, {}: {measured}, aim {aim}", fulls[cell]);
        }
    }
    // With uniform writes, the default costs more than greedy only by the headroom for its classes.
    let classes = |name| cleaning::make(name, parameters(ZONES)).unwrap().classes();
    let waiting = u32::from(classes("lifetime") - classes("greedy"));
    let same_room = fulls.map(|full| Run { waiting, ..Run::new("greedy", Workload::Uniform, full) });
    let same_room: Vec<f64> = all(&same_room).iter().map(Counts::amplification).collect();
    print(
        "greedy with as much room left free as lifetime",
        &columns[..4],
        &[("greedy".to_owned(), same_room.clone())],
    );
    for (cell, greedy) in same_room.iter().enumerate() {
        assert!((of("lifetime", cell) / greedy - 1.0).abs() < 0.02, "{}: {greedy}", columns[cell]);
    }
    for (cell, column) in columns.iter().enumerate().skip(4) {
        let ratio = of("lifetime", cell) / of("greedy", cell);
        assert!(ratio <= 0.75, "{}: lifetime / greedy {ratio}", column);
        for other in cleaning::NAMES {
            let (ours, others) = (of(cleaning::DEFAULT, cell), of(other, cell));
            assert!(ours <= others * 1.03, "{}: {ours}, {other} {others}", column);
        }
    }

    // No user starves, and no policy has bursts.
    let bursts: Vec<(String, Vec<f64>)> = cleaning::NAMES
        .into_iter()
        .zip(results.chunks(cells.len()))
        .map(|(policy, results)| (policy.to_owned(), results.iter().map(Counts::burst).collect()))
        .collect();
    print("moves per user write in the worst 64 writes, over the mean", &columns, &bursts);
    for (run, counts) in runs.iter().zip(&results) {
        assert_eq!(counts.waits, 0, "a write waited: {run:?}");
        assert!(counts.burst() < 6.0, "bursts of {}: {run:?}", counts.burst());
    }
}

/// Cleans zones in the order in which they were begun, as the formula assumes.
#[derive(Debug)]
struct InLogOrder;

impl Policy for InLogOrder {
    fn name(&self) -> &'static str {
        "in log order"
    }
    fn classes(&self) -> u8 {
        2
    }
    fn is_users(&self, class: u8) -> bool {
        class == 0
    }
    fn place(&self, arrival: Arrival) -> u8 {
        u8::from(matches!(arrival, Arrival::Moved { .. }))
    }
    fn choose(
        &mut self,
        candidates: &mut dyn Iterator<Item = Candidate>,
        pressure: Pressure,
        _now: u64,
    ) -> Option<ZoneIndex> {
        let gaining = candidates.filter(|candidate| pressure.is_asked() && candidate.gains());
        gaining.min_by_key(|candidate| candidate.opened).map(|candidate| candidate.zone)
    }
}

/// The formula holds for cleaning in log order, and greedy approaches it from below as zones grow.
#[test]
fn greedy_comes_to_the_formula_from_below() {
    let sizes = [8, 32, 128, 512];
    let columns: Vec<String> = sizes.iter().map(|blocks| format!("{blocks} blocks")).collect();
    let mut rows = vec![("log order (formula)".to_owned(), Vec::new())];
    rows.extend([("log order".to_owned(), Vec::new()), ("greedy".to_owned(), Vec::new())]);
    for blocks in sizes {
        let run = Run::new("greedy", Workload::Uniform, 0.8).on(ZONES, blocks);
        // Exact to the block: the headroom that both keep is the middle of the pacer's watermarks.
        let marks = Marks::for_classes(u64::from(blocks), 2, 0);
        let room = (marks.low + marks.high) / 2;
        let full = f64::from(run.logical()) / (f64::from(ZONES * blocks) - room as f64);
        rows[0].1.push(log_order(full));
        rows[1].1.push(run.run_with(Box::new(InLogOrder)).amplification());
        rows[2].1.push(run.run().amplification());
    }
    print("uniform, by blocks per zone", &columns, &rows);
    for (at, blocks) in sizes.into_iter().enumerate() {
        let (formula, ordered, greedy) = (rows[0].1[at], rows[1].1[at], rows[2].1[at]);
        assert!((ordered / formula - 1.0).abs() < 0.02, "{blocks} blocks: in log order {ordered}, {formula}");
        assert!(greedy < ordered, "{blocks} blocks: greedy {greedy}, in log order {ordered}");
    }
    assert!(rows[2].1.is_sorted(), "greedy gets no better with larger zones: {:?}", rows[2].1);
    assert!(rows[2].1[3] > rows[0].1[3] * 0.97, "greedy is near the formula with 512 blocks");
}

/// The write time of each block is of no use here: the policies need only the precision of zones.
#[test]
fn times_of_zones_are_enough() {
    if conformance::budget::is_left_out() {
        return;
    }
    let cells = [(Workload::Uniform, 0.8), (ZIPF, 0.8), (ZIPF, 0.9), (HOT_COLD, 0.8), (HOT_COLD, 0.9)];
    let mut runs = Vec::new();
    for policy in ["lifetime", "sepbit"] {
        for knowledge in [Knowledge::Zones, Knowledge::Blocks] {
            // With times of blocks, a victim's blocks may open four zones instead of one: headroom for three
            // more.
            let run = |(workload, full)| Run {
                knowledge,
                waiting: 3,
                ..Run::new(policy, workload, full).on(ZONES, 128)
            };
            runs.extend(cells.map(run));
        }
    }
    let columns = cells.map(|(workload, full)| format!("{} {:.0} %", workload.name(), full * 100.0));
    let rows: Vec<(String, Vec<f64>)> = runs
        .chunks(cells.len())
        .zip(all(&runs).chunks(cells.len()))
        .map(|(runs, counts)| {
            let name = format!("{}, of {:?}", runs[0].policy, runs[0].knowledge).to_lowercase();
            (name, counts.iter().map(Counts::amplification).collect())
        })
        .collect();
    print("by what times are known of (three zones less)", &columns, &rows);
    for pair in rows.chunks(2) {
        for (zones, blocks) in pair[0].1.iter().zip(&pair[1].1) {
            assert!(*zones <= blocks * 1.02, "{}: {zones}, {blocks}", pair[0].0);
        }
    }
}

/// Best number of generations of `lifetime`, by the number of zones.
#[test]
fn generations_by_zones() {
    if conformance::budget::is_left_out() {
        return;
    }
    let cells = [
        (Workload::Uniform, 0.8),
        (Workload::Uniform, 0.9),
        (ZIPF, 0.8),
        (ZIPF, 0.9),
        (HOT_COLD, 0.8),
        (HOT_COLD, 0.9),
    ];
    let columns = cells.map(|(workload, full)| format!("{} {:.0} %", workload.name(), full * 100.0));
    for (zones, blocks) in [(48, 128), (128, 128), (768, 32)] {
        let chosen = parameters(zones).generations;
        let mut runs: Vec<Run> = cells
            .iter()
            .map(|(workload, full)| Run::new("greedy", *workload, *full).on(zones, blocks))
            .collect();
        for generations in 1..=4 {
            for (workload, full) in cells {
                let mut run = Run::new("lifetime", workload, full).on(zones, blocks);
                run.parameters.generations = generations;
                runs.push(run);
            }
        }
        let rows: Vec<(String, Vec<f64>)> = all(&runs)
            .chunks(cells.len())
            .zip(0..)
            .map(|(counts, generations)| {
                let name =
                    if generations == 0 { "greedy".to_owned() } else { format!("{generations} generations") };
                (name, counts.iter().map(Counts::amplification).collect())
            })
            .collect();
        print(&format!("lifetime, {zones} zones of {blocks} blocks (default {chosen})"), &columns, &rows);
        // Over all workloads the default is the best, or near it.
        let together = |values: &[f64]| values.iter().product::<f64>().powf(1.0 / values.len() as f64);
        let means: Vec<f64> = rows.iter().map(|(_, values)| together(values)).collect();
        let (ours, best) = (means[usize::from(chosen)], means.iter().copied().fold(f64::INFINITY, f64::min));
        println!("geometric means: {means:.3?}");
        assert!(ours <= best * 1.03, "{zones} zones: {ours}, best {best}");
    }
}

/// Cost of a higher high watermark: headroom that it keeps free, in return for gentler cleaning.
#[test]
fn higher_marks() {
    if conformance::budget::is_left_out() {
        return;
    }
    let spans = [0, 2, 4, 8, 16];
    let columns = spans.map(|span| format!("{} zones", SPAN + u64::from(span)));
    let mut rows = Vec::new();
    for policy in ["greedy", "lifetime"] {
        let runs = spans.map(|span| Run { span, ..Run::new(policy, Workload::Uniform, 0.8) });
        let counts = all(&runs);
        rows.push((policy.to_owned(), counts.iter().map(Counts::amplification).collect::<Vec<f64>>()));
        rows.push((format!("{policy}, bursts"), counts.iter().map(Counts::burst).collect()));
        assert!(counts.iter().all(|counts| counts.waits == 0), "{policy}: a write waited");
    }
    print("uniform 80 %, 256 zones, by how far the upper mark lies above the lower one", &columns, &rows);
    for (name, values) in rows.iter().step_by(2) {
        assert!(values.is_sorted(), "{name}: more headroom costs more: {values:?}");
        // The first value is that of the log device's default for this number of zones.
        assert!(values[0] < 2.69 * 1.05 && values[1] < values[0] * 1.03, "{name}: {values:?}");
    }
}

/// The limits of `threshold` where they matter: with much free space.
#[test]
fn limits_of_threshold() {
    if conformance::budget::is_left_out() {
        return;
    }
    let cells = [(Workload::Uniform, 0.5), (ZIPF, 0.5), (HOT_COLD, 0.5), (ZIPF, 0.8)];
    let columns = cells.map(|(workload, full)| format!("{} {:.0} %", workload.name(), full * 100.0));
    let mut runs: Vec<Run> =
        cells.iter().map(|(workload, full)| Run::new("greedy", *workload, *full).on(ZONES, 128)).collect();
    for limit in [Limit::Fixed, Limit::Free, Limit::Used] {
        for (workload, full) in cells {
            let mut run = Run::new("threshold", workload, full).on(ZONES, 128);
            run.parameters.limit = limit;
            runs.push(run);
        }
    }
    let rows: Vec<(String, Vec<f64>)> = ["greedy", "threshold, fixed", "threshold, free", "threshold, used"]
        .into_iter()
        .zip(all(&runs).chunks(cells.len()))
        .map(|(name, counts)| (name.to_owned(), counts.iter().map(Counts::amplification).collect()))
        .collect();
    print("threshold, k at most 0.3, M two zones", &columns, &rows);
    // With free space, waiting for a round costs nothing and saves nothing.
    for (name, values) in &rows[1..] {
        for (cell, value) in values.iter().enumerate() {
            assert!((value / rows[0].1[cell] - 1.0).abs() < 0.12, "{name}, {}: {value}", columns[cell]);
        }
    }
}

/// When the hot blocks change, the statistics of the previous ones do no lasting harm.
#[test]
fn a_change_of_what_is_hot_is_learned() {
    if conformance::budget::is_left_out() {
        return;
    }
    for policy in cleaning::NAMES {
        let run = Run::new(policy, HOT_COLD, 0.8);
        let volume = u64::from(run.logical());
        let measured = |first: Workload, seed: u64| {
            let mut log = run.filled(run.policy());
            let mut draw = Draw::new(first, run.logical(), seed);
            (0..UNMEASURED * volume).for_each(|_| log.write(draw.next()));
            log.begin_measuring();
            let mut draw = Draw::new(HOT_COLD, run.logical(), SEED);
            (0..2 * volume).for_each(|_| log.write(draw.next()));
            let settling = log.counts.amplification();
            assert_eq!(log.counts.waits, 0, "{policy}: a write waited");
            log.begin_measuring();
            (0..4 * volume).for_each(|_| log.write(draw.next()));
            assert_eq!(log.counts.waits, 0, "{policy}: a write waited");
            (settling, log.counts.amplification())
        };
        // Another tenth is hot; before, one block in a hundred took nearly all writes.
        let (settling, changed) = measured(Workload::HotCold { blocks: 0.01, writes: 0.99 }, SEED + 1);
        let (_, same) = measured(HOT_COLD, SEED);
        println!(
            "seed {SEED}: {policy:14} after a change {settling:.2}, then {changed:.2}; without one {same:.2}"
        );
        assert!(changed <= same * 1.10, "{policy}: {changed} after a change, {same} without");
    }
}

/// On a volume so full that hardly any block is dead, writes continue at a slower pace.
#[test]
fn nearly_full_volumes_go_on() {
    for policy in cleaning::NAMES {
        let run = Run::new(policy, Workload::Uniform, 0.98).on(128, 64);
        let mut log = run.filled(run.policy());
        let mut draw = Draw::new(run.workload, run.logical(), SEED);
        log.begin_measuring();
        (0..4 * u64::from(run.logical())).for_each(|_| log.write(draw.next()));
        println!(
            "seed {SEED}: {policy:14} 98 % full: {:.1}, burst {:.2}, {} waits",
            log.counts.amplification(),
            log.counts.burst(),
            log.counts.waits
        );
        assert!(log.counts.amplification() > 4.0, "{policy}: this is a hard case");
        assert!(log.counts.burst() < 6.0, "{policy}: bursts of {}", log.counts.burst());
    }
}
