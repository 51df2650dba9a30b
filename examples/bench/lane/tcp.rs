//! The baseline: the same blocks over a plain TCP socket, as a careful program would send them.
//!
//! A batch is a header with the list of slices, all blocks gathered from where they lie by `writev`, and one byte back
//! when the last block is where it belongs. The receiver reads each block straight into its place. No copy in the
//! program on either side, no encryption, `TCP_NODELAY`, and the kernel's own choice of buffers, which grow as needed.
//! For latency it is a bare ping-pong: the bytes one way, one byte back, no header.

use std::{
    io::{self, IoSlice, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use super::Lane;
use crate::{
    Result,
    arrivals::Arrivals,
    peer::Peer,
    placement::{Block, Placement},
    tables::Tables,
    workload::{Measure, Workload},
};

/// How long the sender waits for the other process before it gives up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of a slice in the header: table, offset, length.
const ENTRY: usize = 24;

/// The sender's end.
pub(crate) struct TcpLane {
    stream: TcpStream,
    source: Arc<Tables>,
    blocks: Vec<Block>,
    header: Vec<u8>,
}

impl TcpLane {
    pub(crate) fn connect(
        address: SocketAddr,
        workload: &Workload,
        placement: &Placement,
        source: Arc<Tables>,
    ) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let blocks = placement.blocks(workload);
        let header = match workload.measure {
            Measure::Throughput => header(&blocks),
            Measure::Latency => Vec::new(),
        };
        Ok(Self { stream, source, blocks, header })
    }
}

impl Lane for TcpLane {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn batch(&mut self) -> Result<()> {
        let mut pieces = Vec::with_capacity(self.blocks.len() + 1);
        pieces.push(IoSlice::new(&self.header));
        for block in &self.blocks {
            pieces.push(IoSlice::new(self.source.block(block.table, block.src_offset, block.len)?));
        }
        write_all_vectored(&mut self.stream, &mut pieces)?;
        self.stream.read_exact(&mut [0])?;
        Ok(())
    }

    fn verify(&self, _: &Workload, peer: &mut Peer) -> Result<()> {
        peer.verify(self.name())
    }
}

/// The receiver's end: a thread that serves one sender.
pub(crate) struct TcpServer {
    address: SocketAddr,
    tables: Arc<Mutex<Tables>>,
    arrivals: Arrivals,
}

impl TcpServer {
    pub(crate) fn start(workload: &Workload) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let tables = Arc::new(Mutex::new(Tables::new(workload)?));
        let arrivals = Arrivals::default();
        let (served, noted, workload) = (Arc::clone(&tables), arrivals.clone(), *workload);
        thread::Builder::new().name("tcp".into()).spawn(move || {
            // The sender notices: its socket is closed with this thread's.
            if let Err(error) = serve(&listener, &served, &noted, &workload) {
                eprintln!("bench: TCP receiver: {error}");
            }
        })?;
        Ok(Self { address, tables, arrivals })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    pub(crate) fn verify(&self, workload: &Workload, placement: &Placement) -> Result<()> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner).verify(workload, placement)
    }
}

fn serve(listener: &TcpListener, tables: &Mutex<Tables>, arrivals: &Arrivals, workload: &Workload) -> io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let lock = || tables.lock().unwrap_or_else(PoisonError::into_inner);
    match workload.measure {
        Measure::Throughput => {
            let mut entries = Vec::new();
            while let Some(count) = next_batch(&mut stream)? {
                if count > workload.tables * workload.pages {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "the header names too many blocks"));
                }
                entries.resize(count * ENTRY, 0);
                stream.read_exact(&mut entries)?;
                let mut tables = lock();
                let (numbers, _) = entries.as_chunks();
                let (entries, _) = numbers.as_chunks();
                for entry in entries {
                    let [table, offset, len] = entry.map(|number| u64::from_le_bytes(number) as usize);
                    stream.read_exact(tables.block_mut(table, offset, len)?)?;
                }
                stream.write_all(&[1])?;
            }
        }
        Measure::Latency => {
            let mut bytes = vec![0; workload.page_bytes];
            loop {
                match stream.read_exact(&mut bytes) {
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                    read => read?,
                }
                lock().block_mut(0, 0, bytes.len())?.copy_from_slice(&bytes);
                arrivals.note();
                stream.write_all(&[1])?;
            }
        }
    }
    Ok(())
}

/// How many blocks the next batch has; `None` when the sender has hung up.
fn next_batch(stream: &mut TcpStream) -> io::Result<Option<usize>> {
    let mut count = [0; 8];
    match stream.read_exact(&mut count) {
        Ok(()) => Ok(Some(u64::from_le_bytes(count) as usize)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn header(blocks: &[Block]) -> Vec<u8> {
    let mut header = Vec::with_capacity(8 + blocks.len() * ENTRY);
    header.extend_from_slice(&(blocks.len() as u64).to_le_bytes());
    for block in blocks {
        for number in [block.table, block.dst_offset, block.len] {
            header.extend_from_slice(&(number as u64).to_le_bytes());
        }
    }
    header
}

fn write_all_vectored(stream: &mut TcpStream, mut pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
    // Drops empty pieces in front, such as the header of a ping.
    IoSlice::advance_slices(&mut pieces, 0);
    while !pieces.is_empty() {
        match stream.write_vectored(pieces) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut pieces, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
