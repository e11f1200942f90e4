//! fio's job files in their basic form: sections of `key=value`, `[global]` before the jobs that it applies
//! to, comments, booleans without a value.
//!
//! A file that uses the options of [`options::OPTIONS`] has the same meaning as in fio. Any other option is
//! refused by name, never ignored, and all problems are reported together. Settings that are accepted but
//! replaced (another `ioengine`) are listed in [`JobFile::notes`].

pub mod number;
pub mod options;

use crate::job::Job;
use number::Units;
use options::JobOption;
use stack::{Collector, Problem, Problems, Source, Span};
use std::collections::{BTreeMap, BTreeSet};

/// Contents of a job file.
#[derive(Debug, Clone, PartialEq)]
pub struct JobFile {
    /// Jobs, in the order of the file. Never empty.
    pub jobs: Vec<Job>,
    /// Notes for the user, each once.
    pub notes: Vec<String>,
}

/// fio's engines that have one request in flight, for any `iodepth`.
const SYNCHRONOUS_ENGINES: &[&str] = &["sync", "psync", "vsync", "pvsync", "pvsync2", "mmap"];

impl JobFile {
    /// Parses a job file. `file` is its name in messages; `variable` looks up `${NAME}`.
    ///
    /// # Errors
    /// All problems of the file.
    pub fn parse(
        file: &str,
        text: &str,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<JobFile, Problems> {
        let mut parser = Parser::new(Source::new(file, text), variable);
        text.lines().for_each(|line| parser.line(text, line));
        parser.end_section();
        if parser.jobs.is_empty() && parser.problems.count() == 0 {
            let message = "no job in this file: a job begins with its name in brackets, [name]";
            parser.problems.add(|| Problem::without_place(file, message));
        }
        parser.problems.finish(JobFile { jobs: parser.jobs, notes: parser.notes })
    }
}

/// Section that is being parsed.
struct Section {
    job: Job,
    is_global: bool,
    stonewall: bool,
    said: BTreeMap<&'static str, Span>,
}

struct Parser<'a> {
    source: Source,
    variable: &'a dyn Fn(&str) -> Option<String>,
    global: Job,
    global_said: BTreeMap<&'static str, Span>,
    global_stonewall: bool,
    section: Option<Section>,
    jobs: Vec<Job>,
    notes: Vec<String>,
    problems: Collector,
}

impl<'a> Parser<'a> {
    fn new(source: Source, variable: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Parser {
            source,
            variable,
            global: Job::new("global"),
            global_said: BTreeMap::new(),
            global_stonewall: false,
            section: None,
            jobs: Vec::new(),
            notes: Vec::new(),
            problems: Collector::default(),
        }
    }

    fn refuse(&mut self, span: &Span, message: impl Into<String>) {
        self.problems.add(|| self.source.problem(span.clone(), message));
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn line(&mut self, text: &str, line: &str) {
        let code = &line[..line.find([';', '#']).unwrap_or(line.len())];
        let trimmed = code.trim();
        let span = |part: &str| {
            let start = part.as_ptr() as usize - text.as_ptr() as usize;
            start..start + part.len()
        };
        if trimmed.is_empty() {
            return;
        }
        let place = &span(trimmed);
        if let Some(rest) = trimmed.strip_prefix('[') {
            self.end_section();
            match rest.strip_suffix(']').map(str::trim) {
                Some(name) if !name.is_empty() => self.begin_section(name),
                _ => self.refuse(place, format!("{trimmed}: expected a section's name in brackets, [name]")),
            }
            return;
        }
        match trimmed.split_once('=') {
            Some((key, value)) => {
                let (key, value) = (key.trim(), value.trim());
                self.set(key, &span(key), Some((value, &span(value))));
            }
            None if trimmed.starts_with("include ") || trimmed.starts_with("include\t") => {
                self.set("include", place, Some(("", place)));
            }
            None => self.set(trimmed, place, None),
        }
    }

    fn begin_section(&mut self, name: &str) {
        let is_global = name == "global";
        let mut job = self.global.clone();
        job.name = name.into();
        self.section = Some(Section {
            job,
            is_global,
            stonewall: self.global_stonewall,
            said: self.global_said.clone(),
        });
    }

    fn set(&mut self, key: &str, place: &Span, value: Option<(&str, &Span)>) {
        if self.section.is_none() {
            // Reported once, and not for every line before the first section.
            self.refuse(
                place,
                format!("{key} is outside of a section: begin with [global] or a job's [name]"),
            );
            self.begin_section("global");
        }
        let stonewall = key == "stonewall" || key == "wait_for_previous";
        let option = match stonewall {
            true => None,
            false => match options::find(key) {
                Ok(option) => Some(option),
                Err(message) => return self.refuse(place, message),
            },
        };
        let name = option.map_or("stonewall", |option| option.name);
        let (value, value_place) = match value {
            Some((value, value_place)) => match self.expand(value) {
                Ok(value) => (value, value_place),
                Err(message) => return self.refuse(value_place, format!("{name}={message}")),
            },
            None if option.is_none_or(|option| option.bare) => ("1".into(), place),
            None => return self.refuse(place, format!("{name} needs a value: {name}=…")),
        };
        match option {
            Some(option) => self.apply(option, &value, place, value_place),
            None => match (value.as_str(), &mut self.section) {
                ("0" | "1", Some(section)) => section.stonewall = value == "1",
                _ => self.refuse(value_place, format!("stonewall={value}: expected 0 or 1")),
            },
        }
    }

    fn apply(&mut self, option: &'static JobOption, value: &str, place: &Span, value_place: &Span) {
        let Some(section) = &mut self.section else { return };
        section.said.insert(option.name, place.clone());
        if let Err(message) = option.apply(&mut section.job, value, Units::Fio) {
            return self.refuse(value_place, message);
        }
        let takes_bytes = ["bs", "bsrange", "size", "io_size", "offset"].contains(&option.name);
        if takes_bytes && value.split([',', '-']).any(number::is_decimal_to_fio) {
            let name = option.name;
            self.note(format!(
                "{name}={value}: fio takes KiB, MiB and GiB as powers of 1000; k, m and g are 1024"
            ));
        }
    }

    /// Replaces `${NAME}` by variables of the environment.
    fn expand(&self, value: &str) -> Result<String, String> {
        let mut result = String::new();
        let mut rest = value;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, tail) = after.split_once('}').ok_or(format!("{value}: ${{ without its }}"))?;
            let found = (self.variable)(name).ok_or(format!("{value}: the variable {name} is not set"))?;
            result.push_str(before);
            result.push_str(&found);
            rest = tail;
        }
        result.push_str(rest);
        for word in ["$jobname", "$jobnum", "$filenum", "$pagesize", "$mb_memory", "$ncpus"] {
            if result.contains(word) {
                return Err(format!("{value}: fio's {word} is not supported: write the value"));
            }
        }
        if result.contains('`') {
            return Err(format!("{value}: commands in backticks are not supported: write the value"));
        }
        Ok(result)
    }

    fn end_section(&mut self) {
        let Some(section) = self.section.take() else { return };
        let Section { mut job, is_global, stonewall, said } = section;
        if is_global {
            self.global = job;
            self.global_said = said;
            self.global_stonewall = stonewall;
            return;
        }
        let names: BTreeSet<&'static str> = said.keys().copied().collect();
        for (option, message) in options::check(&job, &names) {
            self.refuse(said.get(option).unwrap_or(&(0..0)), format!("[{}] {message}", job.name));
        }
        if let Some(engine) = job.ioengine.clone() {
            self.note(format!("ioengine={engine}: replaced by Siltstone's own engine"));
            if SYNCHRONOUS_ENGINES.contains(&engine.as_str()) && job.iodepth > 1 {
                self.note(format!(
                    "ioengine={engine} has one request in flight: iodepth={} is taken as 1",
                    job.iodepth
                ));
                job.iodepth = 1;
            }
        }
        let before = self.jobs.last().map_or(0, |last| last.group);
        job.group = if stonewall && !self.jobs.is_empty() { before + 1 } else { before };
        self.jobs.push(job);
    }
}

#[cfg(test)]
#[path = "job_file/tests.rs"]
mod tests;
