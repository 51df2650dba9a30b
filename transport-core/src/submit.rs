//! Submission, the same for every transport: check everything, reserve, and only then start (contract clause C1).

use std::sync::Arc;

use crate::{
    batch::Batch,
    error::{SliceError, SubmitError},
    grant::ImportedRegions,
    id::RegionId,
    region::{RegionRef, RegionTable},
    transfer::{BatchOptions, New, Permits, Transfer, TransferDriver, TransferPool, start},
};

/// What a submission is checked against.
#[derive(Debug)]
pub struct Submit<'a> {
    /// The local regions.
    pub regions: &'a RegionTable,
    /// What the peer granted.
    pub imported: &'a ImportedRegions,
    /// Where the transfer's slot comes from.
    pub pool: &'a Arc<TransferPool>,
    /// Room for transfers to the peer.
    pub permits: &'a Arc<Permits>,
    /// Longest notification, in bytes.
    pub max_notification: usize,
}

impl Submit<'_> {
    /// Checks a batch and makes its transfer. After `Ok` the transport must drive the transfer to its end.
    ///
    /// # Errors
    /// Each variant of [`SubmitError`] but those about the connection and the transport's state, which the transport
    /// checks before. Nothing has happened then.
    pub fn start(
        &self,
        batch: Batch<'_>,
        options: &BatchOptions<'_>,
    ) -> Result<(Transfer, TransferDriver), SubmitError> {
        if let Some(len) = options.notification.map(<[u8]>::len).filter(|len| *len > self.max_notification) {
            return Err(SubmitError::NotificationTooLong { len, max: self.max_notification });
        }
        let bytes_total = batch.total_bytes()?;
        let permit = self.permits.take().map_err(|in_flight| SubmitError::Full { in_flight })?;
        let new =
            New { batch, bytes_total, notification: options.notification, after: options.after, label: options.label };
        start(self.pool, permit, new, |holds| {
            let imported = self.imported.read();
            let (mut last, mut last_target) = (None, None);
            batch.check(
                |id| {
                    // Slices of one region follow each other as a rule.
                    if let Some((_, len)) = last.filter(|(region, _)| *region == id) {
                        return Ok(len);
                    }
                    let len = self.hold(id, holds)?;
                    last = Some((id, len));
                    Ok(len)
                },
                |id| {
                    if let Some((_, len)) = last_target.filter(|(region, _)| *region == id) {
                        return Ok(len);
                    }
                    let len = imported.get(id)?.len;
                    last_target = Some((id, len));
                    Ok(len)
                },
            )
        })
    }

    fn hold(&self, id: RegionId, holds: &mut Vec<RegionRef>) -> Result<u64, SliceError> {
        match holds.binary_search_by_key(&id, RegionRef::id) {
            Ok(place) => Ok(holds.get(place).map_or(0, RegionRef::len)),
            Err(place) => {
                let region = self.regions.get(id).map_err(SliceError::Source)?;
                let len = region.len();
                holds.insert(place, region);
                Ok(len)
            }
        }
    }
}
