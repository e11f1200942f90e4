//! Users, their passwords and rights.
//!
//! The file of users is a part of redis's ACL file: one line `user NAME` for each user, with these rules,
//! which are obeyed in their order.
//!
//! | rule | meaning |
//! |---|---|
//! | `on`, `off` | the user may log in, or not (default: off) |
//! | `>PASSWORD`, `#SHA256` | a password, or its hash in hexadecimal; several are permitted; ends `nopass` |
//! | `nopass` | any password is right; earlier passwords are forgotten |
//! | `+@all`, `allcommands` | all commands |
//! | `+@read`, `-@write` | commands that change nothing (`-@write` after `+@all`) |
//! | `~*`, `allkeys`, `&*`, `allchannels` | accepted without effect: all keys are permitted |

use crate::password_hash::PasswordHash;
use block::{Error, Result};
use stack::password_file;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

/// Time limit for clients to log in, from their connection on, if the user `default` needs a password.
pub const LOGIN_LIMIT: Duration = Duration::from_secs(10);

/// Name of the user of connections without `AUTH`.
const DEFAULT: &str = "default";

/// Commands that a connection may call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// `AUTH`, `HELLO`, `QUIT` and `RESET`.
    None,
    /// Commands that change nothing.
    Read,
    /// All commands.
    All,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct User {
    is_on: bool,
    needs_no_password: bool,
    passwords: Vec<PasswordHash>,
    rights: Rights,
}

/// User whose password is compared for an unknown name, so that the time doesn't show which names exist.
static NOBODY: LazyLock<User> =
    LazyLock::new(|| User { passwords: vec![PasswordHash::of(b"")], ..User::default() });

/// All users of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Users(BTreeMap<Vec<u8>, User>);

impl Default for Users {
    /// The user `default` with all rights and without a password.
    fn default() -> Self {
        let open = User { is_on: true, needs_no_password: true, passwords: Vec::new(), rights: Rights::All };
        Users([(DEFAULT.into(), open)].into())
    }
}

impl Users {
    /// Reads the users: those of the file `users`, and `default` with the password in the first line of the
    /// file `password`.
    ///
    /// # Errors
    /// Errors of reading; [`Error::Invalid`] with the line for a rule that isn't known, for a file without a
    /// password, and for a user `default` in both.
    pub fn read(password: Option<&Path>, users: Option<&Path>) -> Result<Users> {
        let mut all = match users {
            Some(path) => Self::parse(&password_file::read(path)?)
                .map_err(|error| error.in_context(format_args!("users file \"{}\"", path.display())))?,
            None => Users::default(),
        };
        if let Some(path) = password {
            let password = password_file::password_in(path)?;
            let user = User {
                is_on: true,
                needs_no_password: false,
                passwords: vec![PasswordHash::of(password.as_bytes())],
                rights: Rights::All,
            };
            let listed = all.0.insert(DEFAULT.into(), user);
            if users.is_some() && listed.is_some() {
                return Err(Error::invalid(
                    "the user \"default\" is in the users file and has a password file: expected one of them",
                ));
            }
        }
        Ok(all)
    }

    /// Parses the lines of a file of users. Without a line for it, `default` is off.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the number of the line, also for a second line of a user.
    pub fn parse(text: &str) -> Result<Users> {
        let mut users = Users(BTreeMap::new());
        let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, line) in text.lines().map(str::trim).enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let at = |problem: String| Error::invalid(format!("line {}: {problem}", index + 1));
            let rest =
                line.strip_prefix("user ").ok_or_else(|| at("expected \"user NAME RULE…\"".to_owned()))?;
            let (name, rules) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
            if let Some(first) = lines.insert(name, index + 1) {
                return Err(at(format!(
                    "user \"{name}\" is in line {first} too; expected one line for a user"
                )));
            }
            let user = User::from_rules(rules).map_err(at)?;
            users.0.insert(name.into(), user);
        }
        Ok(users)
    }

    /// Commands of a connection before `AUTH`.
    pub fn initial(&self) -> Rights {
        match self.0.get(DEFAULT.as_bytes()) {
            Some(user) if user.is_on && user.needs_no_password => user.rights,
            _ => Rights::None,
        }
    }

    /// Whether a user, of any name, has rights and needs no password.
    pub fn admits_strangers(&self) -> bool {
        self.0.values().any(|user| user.is_on && user.needs_no_password && user.rights != Rights::None)
    }

    /// Whether `default` needs no password.
    pub fn is_open(&self) -> bool {
        self.initial() != Rights::None
    }

    /// Commands of this user; `None` for a wrong name or password. The time doesn't show which of them is
    /// wrong, except by the few nanoseconds of a comparison for each password of a user beyond the first.
    pub fn log_in(&self, name: &[u8], password: &[u8]) -> Option<Rights> {
        let user = self.0.get(name).unwrap_or(&NOBODY);
        // Hashing takes a time that depends on the length of the password, comparing doesn't.
        let hash = PasswordHash::of(password);
        let mut is_right = user.needs_no_password;
        for secret in &user.passwords {
            is_right |= secret.is_same(&hash);
        }
        (is_right && user.is_on).then_some(user.rights)
    }
}

impl Default for User {
    fn default() -> Self {
        User { is_on: false, needs_no_password: false, passwords: Vec::new(), rights: Rights::None }
    }
}

impl User {
    fn add(&mut self, password: PasswordHash) {
        self.passwords.push(password);
        self.needs_no_password = false;
    }

    fn from_rules(rules: &str) -> Result<User, String> {
        let mut user = User::default();
        for rule in rules.split_ascii_whitespace() {
            match rule {
                "on" => user.is_on = true,
                "off" => user.is_on = false,
                "nopass" => {
                    user.needs_no_password = true;
                    user.passwords.clear();
                }
                "+@all" | "allcommands" => user.rights = Rights::All,
                "+@read" if user.rights == Rights::None => user.rights = Rights::Read,
                "-@write" if user.rights == Rights::All => user.rights = Rights::Read,
                "+@read" | "~*" | "allkeys" | "&*" | "allchannels" => {}
                _ => match (rule.strip_prefix('>'), rule.strip_prefix('#')) {
                    (Some(password), _) => user.add(PasswordHash::of(password.as_bytes())),
                    (_, Some(hash)) => user.add(
                        PasswordHash::from_hex(hash)
                            .ok_or("a hash has 64 hexadecimal digits after #".to_owned())?,
                    ),
                    // The rule may be a password without its >: it isn't shown.
                    _ => {
                        return Err(
                            "unknown rule; expected on, off, >PASSWORD, #SHA256, nopass, +@all, +@read, \
                                    -@write, ~* or &*"
                                .to_owned(),
                        );
                    }
                },
            }
        }
        Ok(user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_a_file_have_their_rights() {
        let users = Users::parse(
            "# who may do what\n\nuser default off\nuser writer on >first >second ~* &* +@all\n\
             user reader on #5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8 ~* +@read\n\
             user former off >password +@all\nuser guest on nopass +@all -@write\nuser idle on >x\n",
        )
        .expect("valid");
        assert_eq!(users.initial(), Rights::None);
        for (name, password, rights) in [
            ("writer", "first", Some(Rights::All)),
            ("writer", "second", Some(Rights::All)),
            ("writer", "third", None),
            ("reader", "password", Some(Rights::Read)),
            ("reader", "", None),
            ("former", "password", None),
            ("guest", "anything", Some(Rights::Read)),
            ("idle", "x", Some(Rights::None)),
            ("nobody", "", None),
            ("default", "", None),
        ] {
            assert_eq!(users.log_in(name.as_bytes(), password.as_bytes()), rights, "{name} {password}");
        }
    }

    #[test]
    fn passwords_and_nopass_replace_each_other() {
        for (rules, password, is_right) in [
            ("on nopass >secret +@all", "secret", true),
            ("on nopass >secret +@all", "guess", false),
            (
                "on nopass #5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8 +@all",
                "guess",
                false,
            ),
            ("on >secret nopass +@all", "guess", true),
            ("on >secret nopass >other +@all", "secret", false),
            ("on >secret nopass >other +@all", "other", true),
        ] {
            let users = Users::parse(&format!("user default {rules}")).expect(rules);
            assert_eq!(users.log_in(b"default", password.as_bytes()).is_some(), is_right, "{rules}");
        }
    }

    #[test]
    fn two_lines_for_a_user_are_refused() {
        let error = Users::parse("user a on >x +@all\n# b\nuser b on\nuser a off\n").expect_err("twice");
        let text = error.to_string();
        assert!(text.contains("line 4: user \"a\" is in line 1 too"), "{text}");
    }

    #[test]
    fn a_password_file_closes_the_default_user() {
        let folder = tempfile::tempdir().expect("a folder");
        let (password, list) = (folder.path().join("password"), folder.path().join("users"));
        std::fs::write(&password, "secret\nmore\n").expect("written");
        std::fs::write(&list, "user reader on >r +@read\n").expect("written");
        for users in [Users::read(Some(&password), None), Users::read(Some(&password), Some(&list))] {
            let users = users.expect("valid");
            assert_eq!(users.initial(), Rights::None);
            assert_eq!(users.log_in(b"default", b"secret"), Some(Rights::All));
            assert_eq!(users.log_in(b"default", b"secret\n"), None);
        }
        std::fs::write(&list, "user default off\n").expect("written");
        assert!(Users::read(Some(&password), Some(&list)).is_err(), "two rules for one user");
        assert!(Users::read(None, None).expect("nothing to read").is_open());
        std::fs::write(&password, "\n").expect("written");
        assert!(Users::read(Some(&password), None).is_err());
        assert!(Users::read(None, Some(&folder.path().join("absent"))).is_err());
    }

    #[test]
    fn wrong_lines_are_named_without_what_may_be_a_password() {
        for (text, expected) in [
            ("user a on\nusr b", "line 2"),
            ("user a on secret", "line 1"),
            ("user a #123", "line 1"),
            ("user a +get", "line 1"),
        ] {
            let error = Users::parse(text).expect_err(text).to_string();
            assert!(error.contains(expected) && !error.contains("secret"), "{error}");
        }
    }
}
