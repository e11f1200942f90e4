//! The domain of libvirt in the book is valid by libvirt's schema.

use siltstone_tests::foreign::{run, skip};
use siltstone_tests::need;
use std::path::Path;

/// Schema of domains, from libvirt's library.
const SCHEMA: &str = "/usr/share/libvirt/schemas/domain.rng";

#[test]
fn the_domain_in_the_book_is_valid() {
    need!("xmllint");
    if !Path::new(SCHEMA).exists() {
        return skip("libvirt's schemas (package libvirt0) are not installed");
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../book/src/vhost-user.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let domain = page.split("```xml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a domain");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("domain.xml");
    let validate = |domain: &str| {
        std::fs::write(&path, domain).expect("a file");
        run("xmllint", &["--noout", "--relaxng", SCHEMA, path.to_str().expect("a path in UTF-8")])
    };
    validate(domain).ok();
    // Proof that the schema can refuse a domain.
    validate(&domain.replace("type='vhostuser'", "type='vhost'")).refused();
}
