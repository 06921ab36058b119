//! This worker, for readers in the same process.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use caju_proto::v1::SplitCount;
use caju_types::{ClientId, Result, TaskId};
use caju_wire::{Chunk, LocalTask, LocalWorker, SplitFacts};

use crate::attachment::Attachment;
use crate::manager::{Credentials, Found, Manager};

/// Passes chunks on unchanged, without a socket.
#[derive(Debug)]
pub(crate) struct InProcess(pub(crate) Arc<Manager>);

#[async_trait]
impl LocalWorker for InProcess {
    async fn open(
        &self,
        task: TaskId,
        client: ClientId,
        ticket: &[u8],
        consumer: Option<u32>,
    ) -> Result<Box<dyn LocalTask>> {
        Ok(match self.0.open(task, &Credentials { client, ticket, consumer }).await? {
            Found::Running(attachment) => Box::new(attachment),
            Found::Over => Box::new(Over),
        })
    }
}

/// Rows that a reader in this process takes are received.
#[async_trait]
impl LocalTask for Attachment {
    async fn next(&mut self) -> Result<Option<Chunk>> {
        let chunk = Attachment::next(self).await?;
        if chunk.is_none() {
            self.received();
        }
        Ok(chunk)
    }

    fn schema(&self) -> Option<SchemaRef> {
        Some(Arc::clone(&self.task.schema))
    }

    fn emitted(&self) -> Option<Vec<SplitCount>> {
        self.task.emitted()
    }

    fn take_split_facts(&mut self) -> SplitFacts {
        Attachment::take_split_facts(self)
    }
}

/// A task whose rows were all received.
struct Over;

#[async_trait]
impl LocalTask for Over {
    async fn next(&mut self) -> Result<Option<Chunk>> {
        Ok(None)
    }

    fn schema(&self) -> Option<SchemaRef> {
        None
    }

    fn emitted(&self) -> Option<Vec<SplitCount>> {
        None
    }

    fn take_split_facts(&mut self) -> SplitFacts {
        SplitFacts::default()
    }
}
