//! Row stages over one chunk, within the memory limit of a chunk.
//!
//! Most chunks pass all stages in one piece. A chunk that needs too much memory at a stage is split in two there, and again
//! if that is not enough: the first piece goes on, and the remainder waits. A batch whose rows grow therefore costs time, not
//! memory; only a single row that is too large is an error.

use std::sync::Arc;

use caju_types::{ErrorKind, Result};
use caju_wire::{Chunk, Elements, Run, push_run, slice_runs};

use crate::context::TaskContext;
use crate::row::{RowSelection, RowStage};

/// A chunk on its way through the stages.
pub(super) struct RowWork {
    stages: Arc<Vec<Arc<RowStage>>>,
    ctx: Arc<TaskContext>,
    /// The pieces that are left, the first rows last, each with the first stage that it has not passed.
    left: Vec<(usize, Chunk)>,
}

impl RowWork {
    pub(super) fn new(stages: Arc<Vec<Arc<RowStage>>>, ctx: Arc<TaskContext>, chunk: Chunk) -> Self {
        Self { stages, ctx, left: vec![(0, chunk)] }
    }

    /// The next rows that have passed all stages, and the work that is left then, if there is any. Runs on a thread of
    /// the CPU pool.
    pub(super) async fn next(mut self) -> Result<(Chunk, Option<Self>)> {
        let pool = self.ctx.pool.clone();
        pool.run(move || {
            // The handover counts for the first stage that the chunk was handed over for.
            if let Some(first) = self.stages.first() {
                self.ctx.stats.stage(first.stats).handed_over();
            }
            let chunk = self.run()?;
            Ok((chunk, (!self.left.is_empty()).then_some(self)))
        })
        .await?
    }

    fn run(&mut self) -> Result<Chunk> {
        let Some((first, mut chunk)) = self.left.pop() else {
            return Err(caju_types::Error::internal("a chunk without rows that are left"));
        };
        for (i, stage) in Arc::clone(&self.stages).iter().enumerate().skip(first) {
            chunk = self.run_stage(i, stage, chunk)?;
        }
        Ok(chunk)
    }

    /// Runs one stage over the chunk, or over as much of it as fits.
    fn run_stage(&mut self, index: usize, stage: &RowStage, mut chunk: Chunk) -> Result<Chunk> {
        loop {
            match run_pieces(stage, &self.ctx, &chunk) {
                Ok(done) => return Ok(done),
                Err((done, at, e)) => {
                    // Elements of several rows stay whole.
                    let rows = chunk.rows();
                    if e.kind() != ErrorKind::ResourceExhausted
                        || !stage.may_be_cut()
                        || chunk.elements != Elements::Rows
                        || rows <= 1
                    {
                        return Err(e);
                    }
                    let done = done.filter(|_| at > 0);
                    let cut = if done.is_some() { at } else { rows / 2 };
                    self.left.push((index, chunk.slice_rows(cut, rows - cut)));
                    match done {
                        Some(done) => return Ok(done),
                        None => chunk = chunk.slice_rows(0, cut),
                    }
                }
            }
        }
    }
}

/// The rows of the pieces before the one that failed, how many rows those were, and why it failed.
type Stopped = (Option<Chunk>, usize, caju_types::Error);

fn run_pieces(stage: &RowStage, ctx: &TaskContext, chunk: &Chunk) -> Result<Chunk, Stopped> {
    let mut pieces = Vec::with_capacity(chunk.pieces.len());
    let mut runs: Vec<Run> = Vec::with_capacity(chunk.runs.len());
    let mut at = 0;
    for piece in &chunk.pieces {
        let here = if chunk.pieces.len() == 1 {
            chunk.runs.clone()
        } else {
            slice_runs(&chunk.runs, at, piece.num_rows())
        };
        match stage.run(ctx, piece, &here) {
            Ok((out, kept)) => {
                match kept {
                    RowSelection::All => here.into_iter().for_each(|r| push_run(&mut runs, r)),
                    kept => kept.runs(&here).into_iter().for_each(|r| runs.push(r)),
                }
                pieces.push(out);
            }
            Err(e) => {
                let done = (!pieces.is_empty()).then(|| Chunk { pieces, runs, ..without_rows(chunk) });
                return Err((done, at, e));
            }
        }
        at += piece.num_rows();
    }
    Ok(Chunk { pieces, runs, ..without_rows(chunk) })
}

/// The chunk without its rows.
fn without_rows(chunk: &Chunk) -> Chunk {
    Chunk {
        pieces: Vec::new(),
        runs: Vec::new(),
        elements: chunk.elements.clone(),
        remainder: chunk.remainder,
    }
}
