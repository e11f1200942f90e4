//! The actions that a command of a chip file can have, and the states in which the interpreter accepts each.

/// A set of [`Condition`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Conditions(u8);

/// State of the chip, as far as it decides whether a command is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Condition {
    /// Standby: nothing runs and nothing is suspended.
    Ready = 1,
    /// A program, an erase or a register write runs (WIP = 1).
    Busy = 2,
    /// A page program is suspended.
    ProgramSuspended = 4,
    /// An erase is suspended.
    EraseSuspended = 8,
    /// Deep power-down.
    DeepPowerDown = 16,
}

/// Names of the conditions in chip files.
pub(crate) const CONDITIONS: &[(&str, Condition)] = &[
    ("ready", Condition::Ready),
    ("busy", Condition::Busy),
    ("program-suspended", Condition::ProgramSuspended),
    ("erase-suspended", Condition::EraseSuspended),
    ("deep-power-down", Condition::DeepPowerDown),
];

impl Conditions {
    /// Returns whether `condition` is in the set.
    pub fn contains(self, condition: Condition) -> bool {
        self.0 & condition as u8 != 0
    }

    pub(crate) fn with(self, condition: Condition) -> Conditions {
        Conditions(self.0 | condition as u8)
    }
}

macro_rules! actions {
    ($($variant:ident $name:literal $doc:literal,)*) => {
        /// Effect of a command. [`Action::name`] returns its name in chip files.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Action {
            $(#[doc = $doc] $variant,)*
        }

        const ACTIONS: &[(&str, Action)] = &[$(($name, Action::$variant),)*];
    };
}

actions! {
    Read "read" "Reads the memory array from an address on, without an end.",
    ReadRegisters "read-registers" "Reads registers, repeated for as long as the clock runs.",
    WriteRegisters "write-registers" "Writes registers; one data byte each.",
    ReadAnyRegister "read-any-register" "Reads the register at the address (65h), repeated for as long as the clock runs.",
    WriteAnyRegister "write-any-register" "Writes one data byte to the register at the address (71h).",
    WriteEnable "write-enable" "Sets the write enable latch (WEL).",
    WriteDisable "write-disable" "Clears the write enable latch; ends AAI programming.",
    VolatileWriteEnable "volatile-write-enable" "Lets the next register write change the volatile copy only.",
    ReadJedecId "read-jedec-id" "Reads the JEDEC ID.",
    ReadLegacyId "read-legacy-id" "Reads manufacturer and device ID (90h); address bit 0 swaps them.",
    ReadUniqueId "read-unique-id" "Reads the unique ID.",
    ReadSfdp "read-sfdp" "Reads the SFDP tables of JESD216.",
    DeepPowerDown "deep-power-down" "Enters deep power-down.",
    ReleasePowerDown "release-power-down" "Leaves deep power-down and reads the electronic ID (ABh).",
    Program "program" "Programs up to a page; wraps at the page's end.",
    AaiProgram "aai-program" "Programs two bytes and increments the address (SST AAI).",
    WriteMemory "write-memory" "Writes any number of bytes at once, as FRAM does.",
    Erase "erase" "Erases the block of the command's size around the address.",
    ChipErase "chip-erase" "Erases the whole array.",
    Suspend "suspend" "Suspends a program or an erase.",
    Resume "resume" "Resumes what was suspended last.",
    ResetEnable "reset-enable" "Lets the next command be a software reset (66h).",
    Reset "reset" "Resets the chip if reset-enable came immediately before (99h).",
    ModeReset "mode-reset" "Ends continuous read mode (FFh); otherwise without effect.",
    EnterQpi "enter-qpi" "Enters QPI: all phases on four lines.",
    ExitQpi "exit-qpi" "Leaves QPI.",
    EnterFourByte "enter-4-byte" "Enters the 4-byte address mode.",
    ExitFourByte "exit-4-byte" "Leaves the 4-byte address mode.",
    SetReadParameters "set-read-parameters" "Sets dummy clocks and wrap length of QPI reads (C0h).",
    SetBurstWrap "set-burst-wrap" "Sets the wrap length of quad reads (77h).",
    LockBlock "lock-block" "Sets the individual lock of a block.",
    UnlockBlock "unlock-block" "Clears the individual lock of a block.",
    ReadBlockLock "read-block-lock" "Reads the individual lock of a block.",
    WriteBlockLock "write-block-lock" "Writes the lock register of a block: bit 0 lock, bit 1 lock-down.",
    LockAll "lock-all" "Sets all individual block locks.",
    UnlockAll "unlock-all" "Clears all individual block locks.",
    ReadSecurity "read-security" "Reads the security registers.",
    ProgramSecurity "program-security" "Programs a security register.",
    EraseSecurity "erase-security" "Erases a security register.",
    EnterOtp "enter-otp" "Maps the security area over the array.",
    ExitOtp "exit-otp" "Maps the array again.",
    LockSecurity "lock-security" "Locks the security area for ever (LDSO).",
    ClearFlags "clear-flags" "Clears the failure flags.",
}

impl Action {
    /// Returns the action's name in chip files.
    pub fn name(self) -> &'static str {
        ACTIONS.iter().find(|(_, action)| *action == self).map_or("", |(name, _)| name)
    }

    pub(crate) fn from_name(name: &str) -> Option<Action> {
        ACTIONS.iter().find(|(known, _)| *known == name).map(|(_, action)| *action)
    }

    pub(crate) fn names() -> String {
        ACTIONS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    }

    /// Returns whether the data phase of the command goes from the chip to the host.
    pub fn reads(self) -> bool {
        use Action::*;
        matches!(
            self,
            Read | ReadRegisters
                | ReadAnyRegister
                | ReadJedecId
                | ReadLegacyId
                | ReadUniqueId
                | ReadSfdp
                | ReleasePowerDown
                | ReadBlockLock
                | ReadSecurity
        )
    }

    /// Returns whether the data phase of the command goes from the host to the chip.
    pub fn takes_data(self) -> bool {
        use Action::*;
        matches!(
            self,
            WriteRegisters
                | WriteAnyRegister
                | Program
                | AaiProgram
                | WriteMemory
                | SetReadParameters
                | SetBurstWrap
                | WriteBlockLock
                | ProgramSecurity
        )
    }

    /// Returns whether the command requires an address.
    pub fn needs_address(self) -> bool {
        use Action::*;
        matches!(
            self,
            Read | ReadAnyRegister
                | WriteAnyRegister
                | ReadLegacyId
                | ReadSfdp
                | Program
                | AaiProgram
                | WriteMemory
                | Erase
                | LockBlock
                | UnlockBlock
                | ReadBlockLock
                | WriteBlockLock
                | ReadSecurity
                | ProgramSecurity
                | EraseSecurity
        )
    }

    /// Returns whether the command needs the write enable latch unless its chip file says otherwise.
    pub fn needs_write_enable(self) -> bool {
        use Action::*;
        matches!(
            self,
            WriteRegisters
                | WriteAnyRegister
                | Program
                | AaiProgram
                | WriteMemory
                | Erase
                | ChipErase
                | LockBlock
                | UnlockBlock
                | WriteBlockLock
                | LockAll
                | UnlockAll
                | ProgramSecurity
                | EraseSecurity
                | LockSecurity
        )
    }

    /// Returns the conditions in which the command is accepted unless its chip file says otherwise.
    ///
    /// The rules are those of the W25Q128JV datasheet, sections "Erase / Program Suspend (75h)" and "Enable
    /// Reset (66h)": a busy chip answers status reads, suspend and reset; while an erase is suspended other
    /// blocks can be read and programmed; while a program is suspended the array can be read; register writes
    /// and erases wait for the resume.
    pub fn conditions(self) -> Conditions {
        use Action::*;
        use Condition::{Busy, EraseSuspended, ProgramSuspended, Ready};
        let ready = Conditions::default().with(Ready);
        let suspended = ready.with(ProgramSuspended).with(EraseSuspended);
        match self {
            ReadRegisters | ReadAnyRegister | ResetEnable | Reset => suspended.with(Busy),
            Suspend => Conditions::default().with(Busy),
            Resume => Conditions::default().with(ProgramSuspended).with(EraseSuspended),
            Program => ready.with(EraseSuspended),
            ReleasePowerDown => suspended.with(Condition::DeepPowerDown),
            WriteRegisters | WriteAnyRegister | AaiProgram | WriteMemory | Erase | ChipErase
            | ProgramSecurity | EraseSecurity | LockSecurity | DeepPowerDown | EnterOtp | ExitOtp
            | EnterQpi | ExitQpi => ready,
            _ => suspended,
        }
    }
}
