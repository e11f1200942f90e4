//! Drivers on the traits of embedded-hal and embedded-storage.

use crate::common::{Drive, small_chip};
use embedded_hal::delay::DelayNs;
use embedded_hal::spi::{Operation, SpiDevice};
use embedded_storage::nor_flash::{NorFlash, NorFlashError, NorFlashErrorKind, ReadNorFlash};
use spinor::{Bus, Chip, Cut, Faults, Nor, NorError, Refusal};

#[test]
fn a_driver_on_the_bus_programs_and_reads() {
    let mut flash = small_chip("W25Q128JV");
    let bus = Bus::new(&mut flash);
    let (mut spi, mut delay) = (bus.clone(), bus.clone());
    spi.write(&[0x06]).unwrap();
    spi.transaction(&mut [Operation::Write(&Chip::at(0x02, 0x300, &[])), Operation::Write(b"firmware")])
        .unwrap();
    let mut status = [0x05, 0xFF];
    spi.transfer_in_place(&mut status).unwrap();
    assert_eq!(status, [0xFF, 0x03]);
    delay.delay_ms(3);
    let mut answer = [0; 2];
    spi.transfer(&mut answer, &[0x05]).unwrap();
    assert_eq!(answer, [0xFF, 0x00]);
    let mut read = [0; 8];
    spi.transaction(&mut [Operation::Write(&Chip::at(0x03, 0x300, &[])), Operation::Read(&mut read)])
        .unwrap();
    assert_eq!(&read, b"firmware");
    assert_eq!(bus.with(|chip| chip.counters().operations), 1);
}

#[test]
fn the_storage_traits_write_across_pages_and_erase() {
    for name in ["W25Q128JV", "MX25L6436E", "GD25Q128C", "S25FL128L", "MT25QL128ABA", "W25Q128FV"] {
        let mut flash = small_chip(name);
        let mut nor: Nor<'_> = Nor::new(&mut flash).unwrap();
        let data: Vec<u8> = (0..1000u32).map(|n| (n * 7) as u8).collect();
        nor.write(0x10F3, &data).unwrap();
        let mut read = vec![0; 1000];
        nor.read(0x10F3, &mut read).unwrap();
        assert_eq!(read, data, "{name}");
        nor.erase(0x1000, 0x3000).unwrap();
        nor.read(0x10F3, &mut read).unwrap();
        assert_eq!(read, [0xFF; 1000], "{name}");
        assert_eq!(nor.capacity(), 256 << 10);
        assert_eq!(nor.erase(0x800, 0x1000).unwrap_err().kind(), NorFlashErrorKind::NotAligned);
        assert_eq!(nor.read(0x3_FFFF, &mut read).unwrap_err().kind(), NorFlashErrorKind::OutOfBounds);
    }
}

#[test]
fn the_storage_traits_report_what_the_chip_refused() {
    let mut flash = small_chip("W25Q128JV");
    flash.finish(&[0x01, 0x1C]);
    let mut nor: Nor<'_, 65536> = Nor::new(&mut flash).unwrap();
    assert_eq!(nor.erase(0, 65536), Err(NorError::Refused(Refusal::Protected)));
    nor.chip().finish(&[0x01, 0]);
    let cuts = vec![Cut::Operation { after: 0, fraction: 0.5 }];
    nor.chip().set_faults(Faults { cuts, ..Faults::default() });
    assert_eq!(nor.write(0, b"lost"), Err(NorError::PowerDown));
    let mut fram = small_chip("MB85RS2MT");
    assert!(Nor::<'_, 4096>::new(&mut fram).is_none(), "FRAM has no erase");
}
