//! Zones of tests that change some calls, and pass the others on to the zones below.

/// Writes methods of an `impl block::Zones` that pass their calls on to the zones in a field of `self`, by
/// names: `conformance::pass_on!(inner: geometry, read, flush);`.
#[macro_export]
macro_rules! pass_on {
    ($below:ident: $($method:ident),+ $(,)?) => {
        $($crate::pass_on!(@ $below $method);)+
    };
    (@ $below:ident geometry) => {
        fn geometry(&self) -> &::block::ZoneGeometry {
            self.$below.geometry()
        }
    };
    (@ $below:ident append_at) => {
        fn append_at(&self, at: ::block::ZoneAddress, payload: ::block::Payload) -> ::block::Call<'_, ::block::Result<()>> {
            self.$below.append_at(at, payload)
        }
    };
    (@ $below:ident read) => {
        fn read(&self, at: ::block::ZoneAddress, buffer: ::block::Buffer) -> ::block::Call<'_, ::block::ReadOutcome> {
            self.$below.read(at, buffer)
        }
    };
    (@ $below:ident flush) => {
        fn flush<'a>(&'a self, zones: &'a [::block::ZoneIndex]) -> ::block::Call<'a, ::block::Result<()>> {
            self.$below.flush(zones)
        }
    };
    (@ $below:ident reset) => {
        fn reset(&self, zone: ::block::ZoneIndex, erase: ::block::EraseGuarantee) -> ::block::Call<'_, ::block::Result<u64>> {
            self.$below.reset(zone, erase)
        }
    };
    (@ $below:ident reserve) => {
        fn reserve(&self, zone: ::block::ZoneIndex, bytes: u64) -> ::block::Call<'_, ::block::Result<()>> {
            self.$below.reserve(zone, bytes)
        }
    };
    (@ $below:ident report) => {
        fn report(&self, first: ::block::ZoneIndex, count: u32) -> ::block::Call<'_, ::block::Result<Vec<::block::ZoneReport>>> {
            self.$below.report(first, count)
        }
    };
    (@ $below:ident append) => {
        fn append(&self, zone: ::block::ZoneIndex, payload: ::block::Payload) -> ::block::Call<'_, ::block::Result<::block::ZoneAddress>> {
            self.$below.append(zone, payload)
        }
    };
    // `open`, `close` and `finish`.
    (@ $below:ident $method:ident) => {
        fn $method(&self, zone: ::block::ZoneIndex) -> ::block::Call<'_, ::block::Result<()>> {
            self.$below.$method(zone)
        }
    };
}
