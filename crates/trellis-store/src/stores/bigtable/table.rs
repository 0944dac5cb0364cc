//! The name of the table, and its creation in an emulator.

use std::collections::HashMap;
use std::sync::Arc;

use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic_prost::ProstCodec;

use crate::error::StoreError;
use crate::stores::google::{Caller, DENIED_HINT, Service, parts};
use crate::stores::grpc::failure::{Failure, Site, answer};

/// The column family of all cells.
pub(super) const FAMILY: &str = "t";

/// A table.
pub(super) struct Table {
    pub(super) service: Arc<Service>,
    instance: String,
    table: String,
    pub(super) site: Site,
}

impl Table {
    /// Parses `PROJECT/INSTANCE/TABLE`.
    pub(super) fn find(url: &str, rest: &str) -> Result<Table, StoreError> {
        let [project, instance, table] = parts(url, rest, ["PROJECT", "INSTANCE", "TABLE"])?;
        let service = Service::find(url, "BIGTABLE_EMULATOR_HOST", "https://bigtable.googleapis.com")?;
        let site = Site {
            store: format!("bigtable://{project}/{instance}/{table}"),
            denied_hint: DENIED_HINT.to_owned(),
            missing: format!("table `{table}` of instance `{instance}`, or its family `{FAMILY}`,"),
            missing_hint: format!(
                "make it with `cbt -project {project} -instance {instance} createtable {table} \
                 families={FAMILY}:maxversions=1`"
            ),
        };
        let instance = format!("projects/{project}/instances/{instance}");
        Ok(Table { service: Arc::new(service), instance, table, site })
    }

    /// The table's name in requests.
    pub(super) fn path(&self) -> String {
        format!("{}/tables/{}", self.instance, self.table)
    }

    /// The context of requests about the table.
    pub(super) fn caller(&self) -> Caller {
        Caller::new(Arc::clone(&self.service), &format!("table_name={}", self.path()))
    }

    /// Creates the table. It is not an error if it exists.
    pub(super) async fn make(&self) -> Result<(), Failure> {
        let mut caller = Caller::new(Arc::clone(&self.service), &format!("parent={}", self.instance));
        let family = ColumnFamily { rule: Some(GcRule { max_num_versions: 1 }) };
        let message = CreateTableRequest {
            parent: self.instance.clone(),
            table_id: self.table.clone(),
            table: Some(NewTable { column_families: HashMap::from([(FAMILY.to_owned(), family)]) }),
        };
        let request = caller.request(message).await?;
        let mut client = Grpc::new(self.service.channel());
        let path = PathAndQuery::from_static("/google.bigtable.admin.v2.BigtableTableAdmin/CreateTable");
        let made = answer(async {
            client.ready().await.map_err(|error| tonic::Status::from_error(Box::new(error)))?;
            client.unary::<CreateTableRequest, (), _>(request, path, ProstCodec::default()).await
        });
        match made.await {
            Ok(_) | Err(Failure::Answered(tonic::Code::AlreadyExists, _)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}

/// `google.bigtable.admin.v2.CreateTableRequest`, with the fields that are used; the whole administration interface would
/// need three more crates.
#[derive(Clone, PartialEq, prost::Message)]
struct CreateTableRequest {
    #[prost(string, tag = "1")]
    parent: String,
    #[prost(string, tag = "2")]
    table_id: String,
    #[prost(message, optional, tag = "3")]
    table: Option<NewTable>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct NewTable {
    #[prost(map = "string, message", tag = "3")]
    column_families: HashMap<String, ColumnFamily>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ColumnFamily {
    #[prost(message, optional, tag = "1")]
    rule: Option<GcRule>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct GcRule {
    #[prost(int32, tag = "1")]
    max_num_versions: i32,
}
