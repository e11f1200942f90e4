//! The log directly on zones in a bucket.

use crate::common::{options, world};
use block::{BlockIndex, Buffer, Data, Device, DevicePart, Durability, ZonesPart};
use objects::{NewVolume, ObjectsPart};
use std::rc::Rc;
use std::sync::Arc;

