//! `siltstone spi serve`: serves a chip with its image, the connections of its programmers and its control
//! socket, until a signal.

use super::ask::CHIP;
use super::text_of;
use crate::address::address;
use crate::arguments::SpiServe;
use crate::control::operated::{Operated, hello, not_traced};
use crate::control::place::{ControlAddress, Identity};
use crate::control::protocol::{Answer, Recipient, Refusal, Request};
use crate::control::server::ControlServer;
use crate::failure::Failure;
use crate::output::{print_line, say};
use crate::service;
use crate::stop::watch::Watch;
use crate::stop::{Further, Stop};
use block::{Call, Error};
use runtime::Config;
use runtime::net::Address;
use serde_json::{Value, json};
use spi::image::ImageFile;
use spi::rules::Rules;
use spi::{Board, Closed, ServedChip, Server, Time};
use spinor::{Chip, Cut, Description, Faults};
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// Arguments, checked before anything is opened.
struct Setup {
    description: Arc<Description>,
    addresses: Vec<Address>,
    rules: Rules,
    faults: Faults,
    image: Option<PathBuf>,
    create: bool,
    pty: bool,
    time: Time,
    seed: u64,
    traced: usize,
    control: Option<PathBuf>,
    is_operated: bool,
    as_json: bool,
}

/// Serves a chip until a signal.
///
/// # Errors
/// A wrong chip, address, image, fault or list of rules; errors of opening, listening and closing;
/// [`Failure::Said`] for a violated rule.
pub fn serve(arguments: &SpiServe) -> Result<(), Failure> {
    let description = text_of(&arguments.chip.chip)?.description()?;
    let mut addresses = Vec::new();
    for text in &arguments.serprog {
        addresses.push(address("--serprog", text, arguments.allow_remote)?);
    }
    for path in &arguments.unix {
        let Some(path) = path.to_str() else {
            return Err(Failure::Usage(format!(
                "--unix \"{}\": not UTF-8; expected a path in UTF-8, since programmers get it as text; choose another path",
                path.display()
            )));
        };
        addresses.push(address("--unix", &format!("unix:{path}"), arguments.allow_remote)?);
    }
    if addresses.is_empty() && !arguments.pty {
        return Err(Failure::Usage(
            "spi serve: no address for programmers; expected --serprog IP:PORT, --unix PATH or --pty; add one, such as --serprog \
             127.0.0.1:4025"
                .into(),
        ));
    }
    let rules = match &arguments.rules {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| Failure::Usage(format!("--assert {}: {error}", path.display())))?;
            Rules::parse(&path.display().to_string(), &text).map_err(Failure::Usage)?
        }
        None => Rules::default(),
    };
    let absolute = |path: &PathBuf| {
        std::path::absolute(path).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
    };
    let setup = Setup {
        description,
        addresses,
        rules,
        faults: faults(&arguments.fault)?,
        image: arguments.image.clone(),
        create: arguments.create,
        pty: arguments.pty,
        time: arguments.time,
        seed: arguments.seed,
        traced: arguments.trace as usize,
        control: arguments.control.as_ref().map(absolute).transpose()?,
        is_operated: !arguments.no_control,
        as_json: arguments.json,
    };
    runtime::run(Config::default(), move || open(setup))?
}

/// Parses the faults.
fn faults(texts: &[String]) -> Result<Faults, Failure> {
    let mut faults = Faults::default();
    for text in texts {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let wrong = |expected: &str| {
            Failure::Usage(format!("--fault {text}: unknown fault or value; expected {expected}"))
        };
        let count = || value.parse::<u64>().map_err(|_| wrong(&format!("{name}=N")));
        let unit = |value: &str, expected| {
            let number = value.parse::<f64>().ok().filter(|number| (0.0..=1.0).contains(number));
            number.ok_or_else(|| wrong(expected))
        };
        let is_cut = name.starts_with("cut-");
        let is_repeated =
            |other: &&String| other.split_once('=').map_or(other.as_str(), |(name, _)| name) == name;
        if !is_cut && texts.iter().filter(is_repeated).count() > 1 {
            return Err(Failure::Usage(format!(
                "--fault {text}: {name} is given several times; expected once; only cut-bus-byte and cut-operation may be repeated"
            )));
        }
        match name {
            "wear" if value.is_empty() => faults.wear = true,
            "read-disturb" => faults.read_disturb = count()?,
            "flip-in" => faults.flip_in = unit(value, "flip-in=PROBABILITY, 0 to 1")?,
            "flip-out" => faults.flip_out = unit(value, "flip-out=PROBABILITY, 0 to 1")?,
            "stuck-busy" => faults.stuck_busy = Some(count()?),
            "cut-bus-byte" => faults.cuts.push(Cut::BusByte(count()?)),
            "cut-operation" => {
                let expected = "cut-operation=N:FRACTION, such as cut-operation=3:0.5";
                let (after, fraction) = value.split_once(':').ok_or_else(|| wrong(expected))?;
                let after = after.parse().map_err(|_| wrong(expected))?;
                faults.cuts.push(Cut::Operation { after, fraction: unit(fraction, expected)? });
            }
            _ => {
                return Err(wrong(
                    "wear, read-disturb=BYTES, flip-in=P, flip-out=P, stuck-busy=N, cut-bus-byte=N or cut-operation=N:FRACTION",
                ));
            }
        }
    }
    Ok(faults)
}

async fn open(setup: Setup) -> Result<(), Failure> {
    let description = setup.description.clone();
    let (image, mut chip) = match &setup.image {
        Some(path) => {
            let (image, chip) = ImageFile::open(path, description, setup.seed, setup.create).await?;
            (Some(image), chip)
        }
        None => (None, Chip::erased(description, setup.seed)),
    };
    chip.set_faults(setup.faults.clone());
    let control = match (&setup.control, setup.is_operated) {
        (Some(path), _) => Some(ControlServer::start(&ControlAddress::At(path.clone())).await?),
        (None, true) => {
            let identity = Identity::of_chip(image.as_ref().map(ImageFile::path))?;
            Some(ControlServer::start(&ControlAddress::Of(identity)).await?)
        }
        (None, false) => None,
    };
    let board = Rc::new(RefCell::new(Board::new(chip, setup.time, setup.rules, setup.traced)));
    let started = async {
        let server = Server::start(board.clone(), &setup.addresses, setup.pty).await?;
        // The handler is installed before a reader of the addresses can send a signal.
        let loss = "changes of the image since its last write are lost".to_owned();
        let stop = Stop::new("spi serve", loss, Further::EndsProcess, &Watch::default())?;
        Ok::<_, Error>((server, stop))
    };
    let (server, stop) = match started.await {
        Ok(started) => started,
        Err(error) => {
            if let Some(control) = control {
                control.stop().await;
            }
            return Err(error.into());
        }
    };
    let chip = Rc::new(OperatedChip(ServedChip::new(board, image, server)));
    if let Some(control) = &control {
        control.opened(chip.clone());
    }
    let outcome = until_stopped(&chip.0, control.as_ref(), setup.as_json, &stop).await;
    let ending = async {
        // The control server answers its requests in progress; afterwards this is the chip's only owner.
        if let Some(control) = control {
            control.stop().await;
        }
        match Rc::try_unwrap(chip) {
            Ok(chip) => ended(outcome, chip.0.close().await),
            Err(_) => Err(Failure::World("the chip is still in use at the end".into())),
        }
    };
    stop.wait(&(), ending).await
}

/// Reports all violations and errors; returns the last error.
fn ended(outcome: Result<(), Failure>, closed: Closed) -> Result<(), Failure> {
    closed.violations.iter().for_each(|violation| say(violation));
    let mut failures: Vec<Failure> = outcome.err().into_iter().collect();
    failures.extend(closed.errors.into_iter().map(Failure::from));
    let last = failures.pop();
    failures.iter().for_each(|failure| say(&failure.to_string()));
    match last {
        Some(failure) => Err(failure),
        None if closed.violations.is_empty() => Ok(()),
        None => Err(Failure::Said),
    }
}

/// Prints the addresses, and waits for a signal.
async fn until_stopped(
    chip: &ServedChip,
    control: Option<&ControlServer>,
    as_json: bool,
    stop: &Stop,
) -> Result<(), Failure> {
    let mut addresses: Vec<String> = chip.server().addresses().iter().map(ToString::to_string).collect();
    addresses.extend(chip.server().pty().map(|path| path.display().to_string()));
    match as_json {
        true => {
            let control = control.and_then(ControlServer::path).map(|path| path.display().to_string());
            print_line(&json!({ "addresses": addresses, "control": control }).to_string())?;
        }
        false => print_line(&addresses.join("\n"))?,
    }
    service::ready();
    Ok(stop.signal().await?)
}

/// Served chip as a recipient of operators' requests.
struct OperatedChip(ServedChip);

impl Operated for OperatedChip {
    fn carry_out<'a>(&'a self, request: &'a Request) -> Call<'a, Answer> {
        Call::new(async move {
            match request {
                Request::Hello => Ok(hello()),
                Request::Status => {
                    let mut status = self.0.status().await;
                    status["server"] = json!({ "process": std::process::id() });
                    Ok(status)
                }
                Request::Observe | Request::Metrics(_) => Err(Refusal::wrongly_asked(Error::unsupported(
                    "a server of a flash chip counts no calls; expected the server of a stack",
                ))),
                // The server refuses them.
                Request::Trace(_) | Request::TraceNext => Err(not_traced()),
                Request::Message { to: Recipient::Part(word) | Recipient::Kind(word), .. }
                    if word != CHIP =>
                {
                    Err(Refusal::wrongly_asked(Error::not_found(format!(
                        "recipient \"{word}\": unknown to a server of a flash chip; expected \"{CHIP}\""
                    ))))
                }
                Request::Message { text, .. } => match self.0.answer(text).await {
                    Ok(answer) => Ok(answer),
                    Err(error @ Error::Invalid(_)) => Err(Refusal::wrongly_asked(error)),
                    Err(error) => Err(error.into()),
                },
            }
            .map(|answer: Value| answer)
        })
    }
}
