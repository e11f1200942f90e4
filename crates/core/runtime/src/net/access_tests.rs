use super::*;
use crate::net::{Address, Listener, SocketFolder};
use crate::{Config, run};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

#[test]
fn modes_are_octal_permissions() {
    for (text, expected) in [("0660", 0o660), ("660", 0o660), ("0", 0), ("0777", 0o777)] {
        assert_eq!(Access::parse_mode(text).unwrap(), expected, "{text}");
    }
    for text in ["", "0668", "1777", "00660", "rw-rw----", "-1", "+660", " 660", "0o66"] {
        let error = Access::parse_mode(text).unwrap_err();
        let expected = format!("not permissions: \"{text}\"; expected octal digits up to 0777");
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

#[test]
fn owners_are_those_of_chown() {
    let owner = |user, group| Owner { user, group };
    for (text, expected) in [
        ("root", owner(Some(0), None)),
        ("root:root", owner(Some(0), Some(0))),
        ("root:", owner(Some(0), Some(0))),
        (":root", owner(None, Some(0))),
        ("1234", owner(Some(1234), None)),
        ("1234:5678", owner(Some(1234), Some(5678))),
        (":5678", owner(None, Some(5678))),
    ] {
        assert_eq!(text.parse::<Owner>().unwrap(), expected, "{text}");
    }
    for (text, expected) in [
        ("", "not an owner: \"\""),
        (":", "not an owner: \":\""),
        ("no-such-user:root", "unknown user: \"no-such-user\""),
        ("root:no-such-group", "unknown group: \"no-such-group\""),
        ("4294967295", "unknown user: \"4294967295\""),
        ("root:4294967296", "unknown group: \"4294967296\""),
        ("-1", "unknown user: \"-1\""),
        ("a\0b", "unknown user"),
        ("1234:", "user without a group of its own: \"1234\""),
        ("root:root:root", "unknown group: \"root:root\""),
    ] {
        let error = text.parse::<Owner>().unwrap_err();
        assert!(error.to_string().contains(expected), "{text}: {error}");
    }
}

/// Listens with an access, in a folder of its own, and returns permissions, user and group of the file.
fn listened_with(access: Access) -> Result<(u32, u32, u32)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vol.sock");
    let outcome = run(Config::default(), {
        let path = path.clone();
        move || async move {
            let listener = Listener::replace_stale(&Address::Unix(path.clone()), access).await?;
            crate::net::Stream::connect(listener.local_address()).await?;
            let found = std::fs::symlink_metadata(&path).unwrap();
            listener.close().await?;
            Ok((found.permissions().mode() & 0o7777, found.uid(), found.gid()))
        }
    });
    assert!(!path.exists());
    outcome.unwrap()
}

#[test]
fn a_mode_is_exact_whatever_the_umask() {
    // Wider than the result of any usual umask, and narrower.
    for mode in [0o777, 0o666, 0o660, 0o600] {
        assert_eq!(listened_with(Access::with_mode(mode)).unwrap().0, mode);
    }
}

#[test]
fn an_owner_is_given_or_the_error_names_the_socket() {
    let owner = Owner { user: Some(12345), group: Some(54321) };
    // SAFETY: no memory is passed.
    let is_root = unsafe { libc::geteuid() } == 0;
    match (listened_with(Access { mode: Some(0o660), owner }), is_root) {
        (Ok(found), true) => assert_eq!(found, (0o660, 12345, 54321)),
        (Err(error), false) => {
            assert!(error.to_string().contains("vol.sock\": changing its owner"), "{error}")
        }
        (other, _) => panic!("{other:?}"),
    }
}

/// The file has no permissions until it has its owner, and the kernel refuses connections until listen.
#[test]
fn a_socket_that_is_bound_has_no_permissions_before_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vol.sock");
    let access = Access::with_mode(0o666);
    run(Config::default(), {
        let path = path.clone();
        move || async move {
            let check = || {
                let found = std::fs::symlink_metadata(&path).unwrap();
                assert_eq!(found.permissions().mode() & 0o7777, 0);
                let error = std::os::unix::net::UnixStream::connect(&path).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
                access.apply(&path, |_| true)
            };
            let _listening =
                Listener::bind_with(&Address::Unix(path.clone()), |socket| access.prepare(socket), check)
                    .unwrap();
            std::os::unix::net::UnixStream::connect(&path).unwrap();
        }
    })
    .unwrap();
}

#[test]
fn a_file_in_the_place_of_the_socket_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (path, target) = (folder.path().join("vol.sock"), folder.path().join("precious"));
    std::fs::write(&target, "").unwrap();
    std::fs::set_permissions(&target, PermissionsExt::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    let inode = std::fs::metadata(&target).unwrap().ino();
    let error = Access::with_mode(0o666).apply(&path, |found| found.ino() == inode).unwrap_err();
    assert!(error.to_string().contains("another process replaced it"), "{error}");
    assert_eq!(std::fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o640);
}

/// An error between bind and listen leaves no file.
#[test]
fn a_listener_that_fails_leaves_no_file() {
    // SAFETY: no memory is passed.
    if unsafe { libc::geteuid() } == 0 {
        println!("SKIPPED: a_listener_that_fails_leaves_no_file: root may give files away");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vol.sock");
    let access = Access { mode: None, owner: Owner { user: Some(0), group: None } };
    assert!(SocketFolder::of(&path).unwrap().listen(&path, access).is_err());
    assert!(!path.exists());
}
