//! State of a volume as its bucket has it, for operators.
//!
//! # Promises
//! - Nothing is written, and the writer isn't fenced.
//!
//! Left to others: words of states (`state`), counts of objects (`survey`).

use super::Volume;
use super::survey::survey;
use crate::format::hex;
use crate::state;
use crate::table::State;
use block::Result;
use serde_json::{Map, Value, json};

impl Volume {
    /// Returns the state of the volume, without a claim: nothing is written. With `garbage` all objects are
    /// listed, and those that nothing needs are counted; `listed` gets the number of listed objects.
    ///
    /// # Errors
    /// [`Error::NotFound`](block::Error::NotFound) if there is no volume; errors of damaged manifests and of
    /// the store.
    pub async fn status(&self, garbage: bool, listed: &dyn Fn(u64)) -> Result<Map<String, Value>> {
        let looked = self.look().await?;
        let last = self.epoch().await?;
        let stored = looked.table.stored();
        let zones = |state: State| looked.table.zones.iter().filter(|zone| zone.state == state).count();
        let is_being_opened = looked.claimed > looked.manifest.epoch;
        let state = state::of_bucket(is_being_opened, last.sealed.is_some(), looked.manifest.is_clean);
        let mut status = json!({
            "bucket": self.bucket(),
            "prefix": self.prefix(),
            "volume": hex(&looked.manifest.volume),
            "state": state,
            "epoch": looked.manifest.epoch,
            "manifest": looked.manifest.number,
            "manifests_since_base": looked.manifest.number - looked.manifest.link,
            "writer": looked.manifest.writer.name,
            "written_at": looked.manifest.time / 1000,
            "zones": {
                "total": looked.table.zones.len(),
                "empty": zones(State::Empty),
                "begun": zones(State::Begun),
                "full": zones(State::Full),
                "interrupted": zones(State::Interrupted),
            },
            "zone_size": looked.table.zone_size,
            "pieces": stored.pieces,
            "stored_bytes": stored.bytes,
            "object_bytes": stored.object_bytes(self.manifests.is_encrypted()),
        });
        if is_being_opened {
            status["claimed"] = json!({ "epoch": last.epoch, "by": last.writer });
        }
        if let Some(seal) = last.sealed {
            status["fenced"] = json!({ "by": seal.creator, "at": seal.time / 1000 });
        }
        if garbage {
            let survey = survey(&self.manifests, &looked, listed).await?;
            status["manifests"] = survey.manifests.to_json();
            status["garbage"] = survey.garbage.to_json();
            status["unsettled"] = survey.unsettled.to_json();
            status["foreign"] = survey.foreign.to_json();
        }
        Ok(status.as_object().cloned().unwrap_or_default())
    }
}
