//! A node that lends in TLS: only to borrowers with a certificate.

use crate::support::{MIB, Machine, config, node, open, pattern, read, simulated, write};
use block::Part;
use conformance::certificates::Authority;
use memory_node::{MemoryNode, MemoryNodePart};
use tls::Folder;

#[test]
fn only_borrowers_with_a_certificate_are_served() {
    let (authority, other) = (Authority::new("the authority"), Authority::new("another authority"));
    let [good, bad] = [&authority, &other].map(|signer| {
        let folder = tempfile::tempdir().unwrap();
        signer.fill(folder.path());
        authority.trust(folder.path());
        folder
    });
    simulated(1, move |address| async move {
        let tls = Some(Folder::new(good.path()).server(true).unwrap_or_else(|error| panic!("{error}")));
        let node = node(memory_node::NodeConfig { tls, ..config(&address) }, &Machine::new(512 * MIB)).await;
        let connect = async |folder: Option<&tempfile::TempDir>| {
            let tls = folder.map(|folder| Folder::new(folder.path()).client("127.0.0.1").unwrap());
            MemoryNodePart::connect(address.clone(), "swap0".to_owned(), 1, tls).await
        };
        for wrong in [None, Some(&bad)] {
            assert!(connect(wrong).await.is_err(), "a stranger");
            let part = connect(Some(&good)).await.unwrap();
            let device = open(&part).await;
            write(&*device, 0, pattern(MIB, 3)).await.unwrap();
            assert!(read(&*device, 0, MIB).await == pattern(MIB, 3)[..], "1 MiB differs");
            drop(device);
            part.close().await.unwrap();
        }
        node.stop().await.unwrap();
    });
}

#[test]
fn certificates_permit_an_address_of_a_network() {
    let folder = tempfile::tempdir().unwrap();
    Authority::new("the authority").fill(folder.path());
    let open = |verify: bool| {
        let tls = Some(Folder::new(folder.path()).server(verify).unwrap());
        let config = memory_node::NodeConfig { tls, ..config(&"0.0.0.0:10810".parse().unwrap()) };
        MemoryNode::new(config, Machine::new(512 * MIB).measure()).map(drop)
    };
    assert_eq!(open(true), Ok(()));
    assert!(open(false).is_err(), "everybody could read and change what is borrowed");
}
