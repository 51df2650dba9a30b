//! Grants: which regions a peer may write, on the side that gives the right and on the side that uses it.
//!
//! A grant is a capability. The receiver gives one by region and peer; the sender can name no destination that was not
//! granted to it; and the receiver checks again, because it never trusts a peer's numbers (contract clause C8).

use std::{
    collections::{HashMap, HashSet},
    sync::{PoisonError, RwLock, RwLockReadGuard},
};

use bytes::Bytes;

use crate::{
    error::{GrantError, RegionError, SliceError},
    id::RegionId,
    region::{RegionRef, RegionTable},
};

/// The right to write one region, made by `Transport::grant` on the receiver and used by `Transport::import` on the
/// sender. How it travels is the program's matter; it must be an authenticated channel, since for RDMA it holds the
/// memory key.
#[derive(Clone, PartialEq, Eq)]
pub struct RegionGrant {
    /// The region, by its owner's name.
    pub region: RegionId,
    /// Its length in bytes.
    pub len: u64,
    /// What the transport needs beside that: memory keys by device, for RDMA. At most [`RegionGrant::MAX_KEYS`] bytes.
    pub keys: Bytes,
}

impl RegionGrant {
    /// Longest `keys`, in bytes.
    pub const MAX_KEYS: usize = 1024;

    const HEAD: usize = 16;

    /// The encoded form: index, generation and length in little-endian order, then the keys.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::HEAD + self.keys.len());
        out.extend_from_slice(&self.region.index.to_le_bytes());
        out.extend_from_slice(&self.region.generation.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&self.keys);
        out
    }

    /// Decodes what [`RegionGrant::encode`] made.
    ///
    /// # Errors
    /// [`GrantError::Malformed`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, GrantError> {
        let malformed = |reason| GrantError::Malformed { len: bytes.len(), reason };
        let (index, rest) = bytes.split_first_chunk().ok_or_else(|| malformed("too short"))?;
        let (generation, rest) = rest.split_first_chunk().ok_or_else(|| malformed("too short"))?;
        let (len, keys) = rest.split_first_chunk().ok_or_else(|| malformed("too short"))?;
        if keys.len() > Self::MAX_KEYS {
            return Err(malformed("its keys are longer than 1024 bytes"));
        }
        Ok(Self {
            region: RegionId { index: u32::from_le_bytes(*index), generation: u32::from_le_bytes(*generation) },
            len: u64::from_le_bytes(*len),
            keys: Bytes::copy_from_slice(keys),
        })
    }
}

impl std::fmt::Debug for RegionGrant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The keys are a secret.
        f.debug_struct("RegionGrant").field("region", &self.region).field("len", &self.len).finish_non_exhaustive()
    }
}

/// The regions that a peer granted to this side: what a submission may name as a destination.
#[derive(Debug)]
pub struct ImportedRegions {
    max: usize,
    by_index: RwLock<HashMap<u32, Imported>>,
}

#[derive(Debug)]
struct Imported {
    grant: RegionGrant,
    revoked: bool,
}

impl ImportedRegions {
    /// Nothing granted yet; at most `max` regions are kept.
    pub fn new(max: usize) -> Self {
        Self { max, by_index: RwLock::default() }
    }

    /// Keeps a grant. A newer generation in the same place replaces the older one.
    ///
    /// # Errors
    /// [`GrantError::TooMany`] when the table is full.
    pub fn insert(&self, grant: RegionGrant) -> Result<(), GrantError> {
        let mut by_index = self.by_index.write().unwrap_or_else(PoisonError::into_inner);
        if by_index.len() >= self.max && !by_index.contains_key(&grant.region.index) {
            return Err(GrantError::TooMany { max: self.max });
        }
        by_index.insert(grant.region.index, Imported { grant, revoked: false });
        Ok(())
    }

    /// Notes that the peer took a grant back; later submissions are refused as stale.
    pub fn revoke(&self, region: RegionId) {
        let mut by_index = self.by_index.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(imported) = by_index.get_mut(&region.index).filter(|imported| imported.grant.region == region) {
            imported.revoked = true;
        }
    }

    /// The grant of a region.
    ///
    /// # Errors
    /// As [`SliceError`] says: stale, or never granted.
    pub fn get(&self, region: RegionId) -> Result<RegionGrant, SliceError> {
        self.read().get(region).cloned()
    }

    pub(crate) fn read(&self) -> ImportedGuard<'_> {
        ImportedGuard(self.by_index.read().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(crate) struct ImportedGuard<'a>(RwLockReadGuard<'a, HashMap<u32, Imported>>);

impl ImportedGuard<'_> {
    pub(crate) fn get(&self, region: RegionId) -> Result<&RegionGrant, SliceError> {
        match self.0.get(&region.index) {
            Some(imported) if imported.grant.region == region && !imported.revoked => Ok(&imported.grant),
            Some(_) => Err(SliceError::StaleDestination { asked: region }),
            None => Err(SliceError::NotGranted { asked: region }),
        }
    }
}

/// The regions that this side granted to a peer: what its writes may touch.
#[derive(Debug, Default)]
pub struct GrantedRegions {
    regions: RwLock<HashSet<RegionId>>,
}

impl GrantedRegions {
    /// Grants a region of `table`.
    ///
    /// # Errors
    /// [`GrantError::Region`] or [`GrantError::NotWritable`].
    pub fn grant(&self, table: &RegionTable, region: RegionId, keys: Bytes) -> Result<RegionGrant, GrantError> {
        let entry = table.get(region)?;
        if !entry.access().remote_write() {
            return Err(GrantError::NotWritable { region });
        }
        self.regions.write().unwrap_or_else(PoisonError::into_inner).insert(region);
        Ok(RegionGrant { region, len: entry.len(), keys })
    }

    /// Takes a grant back; answers whether the peer had it.
    pub fn revoke(&self, region: RegionId) -> bool {
        self.regions.write().unwrap_or_else(PoisonError::into_inner).remove(&region)
    }

    /// The region that a peer's write names, if it may write it.
    ///
    /// # Errors
    /// [`SliceError::StaleDestination`] or [`SliceError::NotGranted`].
    pub fn target(&self, table: &RegionTable, region: RegionId) -> Result<RegionRef, SliceError> {
        match table.get(region) {
            Ok(entry) if self.regions.read().unwrap_or_else(PoisonError::into_inner).contains(&region) => Ok(entry),
            Err(RegionError::Stale { .. }) => Err(SliceError::StaleDestination { asked: region }),
            Ok(_) | Err(_) => Err(SliceError::NotGranted { asked: region }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Access, Memory};

    #[test]
    fn only_what_was_granted_is_a_target_and_only_while_it_lives() {
        let table = RegionTable::new(8);
        let open = table.insert(Memory::host(64).unwrap(), Access::REMOTE_WRITE).unwrap().id();
        let private = table.insert(Memory::host(64).unwrap(), Access::LOCAL).unwrap().id();
        let granted = GrantedRegions::default();
        assert_eq!(granted.target(&table, open).unwrap_err(), SliceError::NotGranted { asked: open });
        assert_eq!(
            granted.grant(&table, private, Bytes::new()).unwrap_err(),
            GrantError::NotWritable { region: private }
        );
        assert_eq!(granted.grant(&table, open, Bytes::new()).unwrap().len, 64);
        assert!(granted.target(&table, open).is_ok());
        table.close(open).unwrap();
        assert_eq!(granted.target(&table, open).unwrap_err(), SliceError::StaleDestination { asked: open });
    }

    #[test]
    fn imports_are_bounded_and_a_newer_generation_replaces() {
        let imported = ImportedRegions::new(1);
        let grant =
            |index, generation| RegionGrant { region: RegionId { index, generation }, len: 10, keys: Bytes::new() };
        imported.insert(grant(0, 1)).unwrap();
        assert_eq!(imported.insert(grant(1, 1)), Err(GrantError::TooMany { max: 1 }));
        imported.insert(grant(0, 2)).unwrap();
        let (old, new) = (grant(0, 1).region, grant(0, 2).region);
        assert_eq!(imported.get(old).unwrap_err(), SliceError::StaleDestination { asked: old });
        assert!(imported.get(new).is_ok());
        imported.revoke(new);
        assert_eq!(imported.get(new).unwrap_err(), SliceError::StaleDestination { asked: new });
    }

    proptest! {
        #[test]
        fn decoding_never_panics_and_round_trips(bytes in prop::collection::vec(any::<u8>(), 0..1100)) {
            if let Ok(grant) = RegionGrant::decode(&bytes) {
                prop_assert_eq!(grant.encode(), bytes);
            } else {
                prop_assert!(bytes.len() < 16 || bytes.len() > 16 + RegionGrant::MAX_KEYS);
            }
        }
    }
}
