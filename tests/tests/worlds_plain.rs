//! Simulated worlds on a plain file, which keeps a device's promises; and on files that don't, which must be found out.

use block::{DevicePart, Result};
use layers::fault::{FaultDevicePart, parse_rules};
use runtime::Random;
use siltstone_tests::worlds::{
    Change, Disks, File, Finds, Life, Loss, Stop, Subject, keeps_its_promises, try_seed,
};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

/// What is wrong with a file.
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
        // A write that `fault` tears inside a larger block writes the rest of it as it was read before, over what another
        // request may have written meanwhile.
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

    /// Nothing makes a file anew.
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
    /// It doesn't notice.
    RotsBetween { const LOSS: Option<(Change, Finds)> = Some((Change::Rots { places: 9, below: u64::MAX }, Finds::ErrorOrTruth(Stop::PowerCut))); }
    /// It doesn't fail.
    Opens { const LOSS: Option<(Change, Finds)> = Some((Change::Zeros, Finds::Nothing("lost"))); }
}

#[test]
fn a_file_keeps_its_promises_in_simulated_worlds() {
    keeps_its_promises::<Plain<Nothing>>(300);
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
