//! Arguments for planning and building a part of a kind: the values of its keys and the parts below it.
//!
//! The stack was checked before, so a getter fails only if the kind's code uses a key that it didn't declare,
//! or declared with another type. Keys with a default and required keys have plain getters; others have
//! getters that begin with `optional_`.

use crate::claims::{Claim, LockFile, LockedFile};
use crate::contract::{Built, BuiltPart, Contract};
use crate::key::{Key, WARN_AT};
use crate::shape::Shape;
use crate::units::format_duration;
use crate::value::Value;
use crate::warning::FullnessWarning;
use block::{DevicePart, Error, Result, ZonesPart};
use std::cell::{Cell, RefCell};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A part directly below another one.
#[derive(Debug, Clone)]
pub(crate) struct Child {
    pub key: &'static str,
    pub name: String,
    pub contract: Contract,
    pub shape: Shape,
    /// `None` while the stack is only planned. The error is that of a part that may be missing.
    pub built: Option<Result<BuiltPart>>,
}

/// Values of one part's keys, its name, and the parts below it.
#[derive(Debug)]
pub struct Arguments {
    pub(crate) name: String,
    /// Name of the part's kind.
    pub(crate) kind: &'static str,
    /// Keys that the kind declares.
    pub(crate) keys: &'static [Key],
    pub(crate) values: Vec<(&'static str, Value)>,
    pub(crate) children: Vec<Child>,
    pub(crate) base_directory: PathBuf,
    pub(crate) format: bool,
    pub(crate) must_exist: bool,
    pub(crate) shards: usize,
    /// Key of the last refusal.
    pub(crate) refused: Cell<Option<&'static str>>,
    /// Files that the part has claimed.
    pub(crate) claims: RefCell<Vec<Claim>>,
    /// Claimed files that existed and are locked, by key, during building.
    pub(crate) locked: RefCell<Vec<(&'static str, LockedFile)>>,
}

/// A span of time, or a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DurationOrCount {
    /// A span of time.
    Duration(Duration),
    /// A count of at least 1.
    Count(u64),
}

macro_rules! getters {
    ($($(#[$doc:meta])* $getter:ident, $optional:ident: $variant:ident($value:ident) -> $type:ty = $convert:expr;)*) => {
        $(
            $(#[$doc])*
            pub fn $getter(&self, key: &str) -> Result<$type> {
                self.$optional(key)?.ok_or_else(|| self.not_given(key))
            }

            #[doc = concat!("As [`", stringify!($getter), "`](Self::", stringify!($getter), "); none if it isn't given and has no default.")]
            pub fn $optional(&self, key: &str) -> Result<Option<$type>> {
                match self.value(key)? {
                    None => Ok(None),
                    Some(Value::$variant($value)) => Ok(Some($convert)),
                    Some(_) => Err(self.wrong_type(key)),
                }
            }
        )*
    };
}

impl Arguments {
    /// Name of the part in its stack.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the part has to be created or formatted (`--format`).
    pub fn format(&self) -> bool {
        self.format
    }

    /// Whether a part above has contents here and neither it nor this part is formatted: then a missing part
    /// is an error and isn't created.
    pub fn must_exist(&self) -> bool {
        self.must_exist && !self.format
    }

    /// Number of shards that the stack runs on.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Whether the stack has this key, so that its default isn't used.
    pub fn given(&self, key: &str) -> bool {
        self.values.iter().any(|(name, _)| *name == key)
    }

    getters! {
        /// A size in bytes.
        size, optional_size: Size(value) -> u64 = value;
        /// A whole number in the declared range.
        integer, optional_integer: Integer(value) -> u64 = value;
        /// A number in the declared range.
        float, optional_float: Float(value) -> f64 = value;
        /// True or false.
        boolean, optional_boolean: Bool(value) -> bool = value;
        /// A text.
        text, optional_text: Text(value) -> String = value;
        /// A span of time.
        duration, optional_duration: Duration(value) -> Duration = value;
        /// One of the declared words.
        choice, optional_choice: Choice(value) -> &'static str = value;
    }

    /// A span of time or a count; `None` if it isn't given and has no default.
    pub fn optional_duration_or_count(&self, key: &str) -> Result<Option<DurationOrCount>> {
        match self.value(key)? {
            None => Ok(None),
            Some(Value::Duration(time)) => Ok(Some(DurationOrCount::Duration(time))),
            Some(Value::Integer(count)) => Ok(Some(DurationOrCount::Count(count))),
            Some(_) => Err(self.wrong_type(key)),
        }
    }

    /// A path, made absolute against the folder of the stack file.
    pub fn path(&self, key: &str) -> Result<PathBuf> {
        self.optional_path(key)?.ok_or_else(|| self.not_given(key))
    }

    /// As [`path`](Self::path); `None` if it isn't given and has no default.
    pub fn optional_path(&self, key: &str) -> Result<Option<PathBuf>> {
        match self.value(key)? {
            None => Ok(None),
            Some(Value::Path(path)) => self.absolute(Path::new(&path)).map(Some),
            Some(_) => Err(self.wrong_type(key)),
        }
    }

    /// Makes a path absolute as [`path`](Self::path) does: for keys whose text may be a path, such as the
    /// address of a socket.
    pub fn absolute(&self, path: &Path) -> Result<PathBuf> {
        let joined = self.base_directory.join(path);
        std::path::absolute(&joined)
            .map_err(|error| Error::from_io(&error, &format!("finding the folder of {}", joined.display())))
    }

    /// Texts in order; empty if none are given.
    pub fn texts(&self, key: &str) -> Result<Vec<String>> {
        match self.value(key)? {
            None => Ok(Vec::new()),
            Some(Value::Texts(texts)) => Ok(texts),
            Some(_) => Err(self.wrong_type(key)),
        }
    }

    /// Percentages in ascending order; empty for `never`, and if none are given and the key has no default.
    pub fn percentages(&self, key: &str) -> Result<Vec<u8>> {
        match self.value(key)? {
            None => Ok(Vec::new()),
            Some(Value::Percentages(list)) => Ok(list),
            Some(_) => Err(self.wrong_type(key)),
        }
    }

    /// Device that this key names; only during building.
    pub fn device(&self, key: &str) -> Result<Arc<dyn DevicePart>> {
        self.optional_device(key)?.ok_or_else(|| self.not_given(key))
    }

    /// As [`device`](Self::device); `None` if it isn't given.
    pub fn optional_device(&self, key: &str) -> Result<Option<Arc<dyn DevicePart>>> {
        Ok(self.devices(key)?.pop())
    }

    /// Devices that this key names, in order; empty if none are given. Only during building.
    pub fn devices(&self, key: &str) -> Result<Vec<Arc<dyn DevicePart>>> {
        self.devices_or_errors(key)?.into_iter().collect()
    }

    /// As [`devices`](Self::devices), for a key whose devices [may be missing](Key::may_be_missing): a
    /// missing one is replaced by its build error.
    pub fn devices_or_errors(&self, key: &str) -> Result<Vec<Result<Arc<dyn DevicePart>>>> {
        let device = |child: &Child| match &child.built {
            Some(Ok(BuiltPart { built: Built::Device(device), .. })) => Ok(Ok(device.clone())),
            Some(Ok(_)) => Err(self.wrong_type(key)),
            Some(Err(error)) => Ok(Err(error.clone())),
            None => Err(self.only_planned(key)),
        };
        self.children(key)?.map(device).collect()
    }

    /// Zones that this key names; only during building.
    pub fn zones(&self, key: &str) -> Result<Arc<dyn ZonesPart>> {
        self.optional_zones(key)?.ok_or_else(|| self.not_given(key))
    }

    /// As [`zones`](Self::zones); `None` if they aren't given.
    pub fn optional_zones(&self, key: &str) -> Result<Option<Arc<dyn ZonesPart>>> {
        let Some(child) = self.children(key)?.next() else { return Ok(None) };
        match &child.built {
            Some(Ok(BuiltPart { built: Built::Zones(zones), .. })) => Ok(Some(zones.clone())),
            Some(Ok(_)) => Err(self.wrong_type(key)),
            Some(Err(error)) => Err(error.clone()),
            None => Err(self.only_planned(key)),
        }
    }

    /// Contract of the part that this key names, for keys that accept several contracts; `None` if it isn't
    /// given.
    pub fn contract(&self, key: &str) -> Result<Option<Contract>> {
        Ok(self.children(key)?.next().map(|child| child.contract))
    }

    /// Shape of the part that this key names; empty if it isn't given.
    pub fn shape(&self, key: &str) -> Result<Shape> {
        Ok(self.children(key)?.next().map_or_else(Shape::default, |child| child.shape.clone()))
    }

    /// Shapes of the parts that this key names, in order.
    pub fn shapes(&self, key: &str) -> Result<Vec<Shape>> {
        Ok(self.children(key)?.map(|child| child.shape.clone()).collect())
    }

    /// Names of the parts that this key names, in order.
    pub fn child_names(&self, key: &str) -> Result<Vec<&str>> {
        Ok(self.children(key)?.map(|child| child.name.as_str()).collect())
    }

    /// Time limit of requests to a device or server below: value of the key `timeout`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a value below 10 ms or above 24 h.
    pub fn time_limit(&self) -> Result<Duration> {
        const LIMITS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(24 * 3600);
        let limit = self.duration("timeout")?;
        if LIMITS.contains(&limit) {
            return Ok(limit);
        }
        let [limit, least, most] = [limit, *LIMITS.start(), *LIMITS.end()].map(format_duration);
        Err(self.refuse("timeout", format!("timeout {limit}: expected {least} to {most}")))
    }

    /// Whether the part is opened only to copy what can be read from it: value of the key `salvage`. `plan`
    /// calls this, so that the refusal comes before anything is opened.
    ///
    /// # Errors
    /// [`Error::Invalid`] together with `--format`.
    pub fn salvage(&self) -> Result<bool> {
        let is_salvage = self.boolean("salvage")?;
        if is_salvage && self.format {
            let detail = "salvage: a part that is formatted has nothing to copy; expected no --format; leave it or the key out";
            return Err(self.refuse("salvage", detail));
        }
        Ok(is_salvage)
    }

    /// Warning of a part by its key [`WARN_AT`]; `None` if its kind doesn't have the key.
    pub(crate) fn fullness_warning(&self) -> Result<Option<Arc<FullnessWarning>>> {
        match self.keys.iter().any(|key| key.name == WARN_AT.name) {
            true => Ok(Some(Arc::new(FullnessWarning::new(self.percentages(WARN_AT.name)?)))),
            false => Ok(None),
        }
    }

    /// Returns an error about the value of a key, at whose position it is reported: `size 5000: expected a
    /// multiple of the block size, 4096`.
    #[cold]
    pub fn refuse(&self, key: &'static str, detail: impl Into<block::error::Detail>) -> Error {
        self.refused.set(Some(key));
        Error::invalid(detail)
    }

    /// Claims a file that a key names, during planning: the part opens and locks it, alone or together with
    /// parts that only read it. If two parts of a stack have conflicting claims, the stack is refused before
    /// any file is opened. `lock` is called for all files of a stack before the first part is built; its
    /// result is for [`locked`](Self::locked).
    pub fn claim(&self, key: &'static str, path: &Path, alone: bool, lock: LockFile) {
        self.claims.borrow_mut().push(Claim::new(key, path, alone, lock));
    }

    /// Takes the file that was [claimed](Self::claim) for this key and locked before the stack was built;
    /// `None` during planning, in a second call, and if the file didn't exist.
    pub fn locked<T: 'static>(&self, key: &str) -> Option<T> {
        let mut locked = self.locked.borrow_mut();
        let position = locked.iter().position(|(name, file)| *name == key && file.is::<T>())?;
        locked.swap_remove(position).1.downcast().ok().map(|file| *file)
    }

    fn key(&self, key: &str) -> Result<&'static Key> {
        self.keys.iter().find(|declared| declared.name == key).ok_or_else(|| {
            let kind = self.kind;
            Error::invalid(format!("kind \"{kind}\" asks for the key \"{key}\", which it doesn't declare"))
        })
    }

    /// Value of a declared key, or its default.
    fn value(&self, key: &str) -> Result<Option<Value>> {
        let declared = self.key(key)?;
        if let Some((_, value)) = self.values.iter().find(|(name, _)| *name == key) {
            return Ok(Some(value.clone()));
        }
        let Some(default) = declared.default else { return Ok(None) };
        Value::from_word(declared, default)
            .map(Some)
            .map_err(|wrong| Error::invalid(format!("the default of key \"{key}\": {wrong}")))
    }

    fn children(&self, key: &str) -> Result<impl Iterator<Item = &Child>> {
        let declared = self.key(key)?;
        if !declared.value.names_parts() {
            return Err(self.wrong_type(key));
        }
        Ok(self.children.iter().filter(move |child| child.key == declared.name))
    }

    #[cold]
    fn not_given(&self, key: &str) -> Error {
        let name = &self.name;
        Error::invalid(format!("\"{name}\" has no key \"{key}\", and its kind has no default for it"))
    }

    #[cold]
    fn wrong_type(&self, key: &str) -> Error {
        let kind = self.kind;
        let declared = self.key(key).map_or_else(|_| String::new(), |key| key.value.to_string());
        Error::invalid(format!("kind \"{kind}\" asks for the key \"{key}\" as another type than {declared}"))
    }

    #[cold]
    fn only_planned(&self, key: &str) -> Error {
        let kind = self.kind;
        Error::invalid(format!(
            "kind \"{kind}\" asks for the part \"{key}\" while planning; only its shape is known"
        ))
    }
}
