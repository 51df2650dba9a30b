//! How one side is split over its ranks.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Part, Rank};

/// How one side is split over its ranks, and which of them this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Shard {
    /// This rank.
    pub rank: Rank,
    /// Layers of the main model on each pipeline stage of the side, in order. Its length is the number of stages.
    pub stages: Vec<u32>,
    /// Tensor-parallel ranks of each stage.
    pub tp: u32,
    /// Context-parallel ranks: page `j` of a request is on rank `j` modulo this number.
    pub cp: u32,
    /// Data-parallel groups, each a whole copy of the side.
    pub dp: u32,
    /// Layers of the draft model, all on the last stage; 0 without one.
    pub draft_layers: u32,
}

impl Shard {
    /// A rank of a side with so many main-model layers on each stage and so many tensor ranks of each stage, without a draft,
    /// context or data parallelism.
    pub fn new(rank: Rank, stages: Vec<u32>, tp: u32) -> Self {
        Self { rank, stages, tp, cp: 1, dp: 1, draft_layers: 0 }
    }

    /// The same with a draft model of so many layers on the last stage.
    #[must_use]
    pub fn with_draft_layers(self, draft_layers: u32) -> Self {
        Self { draft_layers, ..self }
    }

    /// The same with so many context-parallel ranks.
    #[must_use]
    pub fn with_cp(self, cp: u32) -> Self {
        Self { cp, ..self }
    }

    /// The same with so many data-parallel groups.
    #[must_use]
    pub fn with_dp(self, dp: u32) -> Self {
        Self { dp, ..self }
    }

    /// The ranks of this rank's data-parallel group, in order.
    pub fn group(&self) -> impl Iterator<Item = Rank> + use<> {
        let (dp, cp, tp) = (self.rank.dp, self.cp, self.tp);
        (0..self.stage_count())
            .flat_map(move |pp| (0..cp).flat_map(move |cp| (0..tp).map(move |tp| Rank { dp, pp, cp, tp })))
    }

    /// How many ranks the side has; saturates.
    pub fn rank_count(&self) -> u64 {
        [self.tp, self.cp, self.dp]
            .iter()
            .fold(self.stages.len() as u64, |product, n| product.saturating_mul((*n).into()))
    }

    /// The layers of a part that this rank holds, by how its side is split.
    pub fn own_layers(&self, part: Part) -> Range<u32> {
        self.layers_of(part, self.rank.pp)
    }

    /// The layers of a part on a stage.
    pub fn layers_of(&self, part: Part, stage: u32) -> Range<u32> {
        match part {
            Part::Main => self.stage_layers(stage),
            Part::Draft => self.draft_layers_of(stage),
        }
    }

    /// The main model's layers on a stage.
    pub fn stage_layers(&self, stage: u32) -> Range<u32> {
        let before = |stages: &[u32]| stages.iter().fold(0u32, |sum, layers| sum.saturating_add(*layers));
        let stage = stage as usize;
        let start = before(self.stages.get(..stage).unwrap_or(&self.stages));
        start..start.saturating_add(self.stages.get(stage).copied().unwrap_or(0))
    }

    /// The main model's layers on all stages together.
    pub fn total_layers(&self) -> u32 {
        self.stages.iter().fold(0u32, |sum, layers| sum.saturating_add(*layers))
    }

    /// The stage that holds a layer of the main model.
    pub fn stage_of(&self, layer: u32) -> Option<u32> {
        (0..self.stage_count()).find(|stage| self.stage_layers(*stage).contains(&layer))
    }

    /// The number of stages.
    pub fn stage_count(&self) -> u32 {
        u32::try_from(self.stages.len()).unwrap_or(u32::MAX)
    }

    /// The draft model's layers on a stage.
    pub fn draft_layers_of(&self, stage: u32) -> Range<u32> {
        if stage.checked_add(1) == Some(self.stage_count()) { 0..self.draft_layers } else { 0..0 }
    }
}
