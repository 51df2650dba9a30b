//! A transport: blocks from registered memory into the registered memory of the other process.

use std::{sync::Arc, thread};

use transport_core::{
    Access, Batch, BatchOptions, Event, Group, Memory, PeerId, RegionGrant, RegionId, Run, TablePair, Transport,
    WriteSlice, next_event,
};

use super::Lane;
use crate::{
    Result,
    arrivals::Arrivals,
    block_on,
    peer::Peer,
    placement::{self, Placement},
    transport::{Endpoint, Kind},
    workload::{Form, Workload},
};

/// The sender's end.
pub(crate) struct TransportLane {
    kind: Kind,
    endpoint: Endpoint,
    peer: PeerId,
    batch: Prepared,
    notification: Option<&'static [u8]>,
}

/// A batch in the form that the workload asks for.
enum Prepared {
    Slices(Vec<WriteSlice>),
    Group { runs: Vec<Run>, tables: Vec<TablePair> },
}

impl TransportLane {
    /// Over an endpoint that is connected to `peer`, which gave `grants`, one for each table.
    pub(crate) fn new(
        workload: &Workload,
        placement: &Placement,
        kind: Kind,
        endpoint: Endpoint,
        peer: PeerId,
        grants: &[Vec<u8>],
    ) -> Result<Self> {
        let transport = endpoint.transport();
        let memory = allocate(workload)?;
        placement::fill(workload, placement, |table, offset, bytes| {
            Ok(memory.get(table).ok_or("no such table")?.write_at(offset as u64, bytes)?)
        })?;
        let mut regions = Vec::new();
        for (memory, grant) in memory.into_iter().zip(grants) {
            let grant = RegionGrant::decode(grant)?;
            transport.import(peer, &grant)?;
            let region = transport.register(memory, Access::LOCAL).map_err(|failure| failure.cause)?;
            regions.push((region, grant.region));
        }
        let notification = workload.notified.then_some(b"written".as_slice());
        Ok(Self { kind, endpoint, peer, batch: Prepared::new(workload, placement, &regions), notification })
    }
}

impl Lane for TransportLane {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn batch(&mut self) -> Result<()> {
        let mut options = BatchOptions::new();
        if let Some(notification) = self.notification {
            options = options.with_notification(notification);
        }
        let transport = self.endpoint.transport();
        let transfer = match &self.batch {
            Prepared::Slices(slices) => transport.batch_write(self.peer, Batch::from(slices), &options),
            Prepared::Group { runs, tables } => {
                transport.batch_write(self.peer, Batch::from(&Group { runs, tables }), &options)
            }
        }?;
        transfer.wait()?;
        Ok(())
    }

    fn remark(&self) -> Option<String> {
        self.endpoint.path(self.peer)
    }

    fn verify(&self, _: &Workload, peer: &mut Peer) -> Result<()> {
        peer.verify(self.name())
    }
}

impl Prepared {
    /// `regions` holds the source and the destination of each table.
    fn new(workload: &Workload, placement: &Placement, regions: &[(RegionId, RegionId)]) -> Self {
        let len = workload.page_bytes as u64;
        let pages = placement.src.iter().zip(&placement.dst).map(|(src, dst)| (*src as u64, *dst as u64));
        match workload.form {
            Form::Slices => {
                let slices = regions.iter().flat_map(|(src, dst)| {
                    pages.clone().map(|(from, to)| WriteSlice {
                        src: *src,
                        src_offset: from * len,
                        dst: *dst,
                        dst_offset: to * len,
                        len,
                    })
                });
                Self::Slices(slices.collect())
            }
            Form::Group => {
                let table = |(src, dst): &(RegionId, RegionId)| TablePair {
                    src_stride: len,

                    dst_stride: len,
                    len,
                    ..TablePair::between(*src, *dst)
                };
                Self::Group {
                    runs: pages.map(|(src, dst)| Run::new(src, dst, 1)).collect(),
                    tables: regions.iter().map(table).collect(),
                }
            }
        }
    }
}

/// The receiver's end: memory that is granted to the sender, and a thread that takes the notifications.
pub(crate) struct TransportSink {
    kind: Kind,
    endpoint: Endpoint,
    memory: Vec<Memory>,
    regions: Vec<RegionId>,
    arrivals: Arrivals,
}

impl TransportSink {
    pub(crate) fn new(workload: &Workload, kind: Kind, endpoint: Endpoint) -> Result<Self> {
        let memory = allocate(workload)?;
        let register = |memory: &Memory| endpoint.transport().register(memory.clone(), Access::REMOTE_WRITE);
        let regions = memory.iter().map(register).collect::<Result<_, _>>().map_err(|failure| failure.cause)?;
        Ok(Self { kind, endpoint, memory, regions, arrivals: Arrivals::default() })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Waits for the sender, and gives the grants for it.
    pub(crate) fn accept(&mut self) -> Result<Vec<Vec<u8>>> {
        let peer = self.endpoint.accept()?;
        let transport = self.endpoint.transport();
        let grants = self.regions.iter().map(|region| transport.grant(peer, *region).map(|grant| grant.encode()));
        let grants = grants.collect::<Result<_, _>>()?;
        let (transport, arrivals) = (Arc::clone(transport), self.arrivals.clone());
        thread::Builder::new().name("events".into()).spawn(move || {
            let listen = async {
                while let Some(event) = next_event(&transport).await {
                    if let Event::Notification { .. } = event {
                        arrivals.note();
                    }
                }
            };
            if let Err(error) = block_on(listen) {
                eprintln!("bench: notifications: {error}");
            }
        })?;
        Ok(grants)
    }

    pub(crate) fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    pub(crate) fn verify(&self, workload: &Workload, placement: &Placement) -> Result<()> {
        placement::verify(workload, placement, |table, offset, into| {
            Ok(self.memory.get(table).ok_or("no such table")?.read_at(offset as u64, into)?)
        })
    }
}

fn allocate(workload: &Workload) -> Result<Vec<Memory>> {
    Ok((0..workload.tables).map(|_| Memory::host(workload.table_bytes())).collect::<Result<_, _>>()?)
}
