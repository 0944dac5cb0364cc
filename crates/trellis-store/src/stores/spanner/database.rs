//! The name of the database, and its creation in an emulator.

use std::sync::Arc;

use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use crate::error::StoreError;
use crate::stores::google::{Caller, DENIED_HINT, Service, parts};
use crate::stores::grpc::failure::{Failure, Site, answer};

/// The table that holds everything.
pub(super) const TABLE: &str = "Trellis";
/// Its columns.
pub(super) const PLACE: &str = "Place";
pub(super) const BYTES: &str = "Bytes";

/// The maximum length of a key's name.
pub(super) const NAME_BYTES_MAX: usize = 4_000;

const TABLE_STATEMENT: &str = "CREATE TABLE Trellis (Place BYTES(4096) NOT NULL, Bytes BYTES(MAX)) PRIMARY KEY (Place)";

/// A database.
pub(super) struct Database {
    pub(super) service: Arc<Service>,
    project: String,
    instance: String,
    database: String,
    pub(super) site: Site,
}

impl Database {
    /// Parses `PROJECT/INSTANCE/DATABASE`.
    pub(super) fn find(url: &str, rest: &str) -> Result<Database, StoreError> {
        let [project, instance, database] = parts(url, rest, ["PROJECT", "INSTANCE", "DATABASE"])?;
        let service = Service::find(url, "SPANNER_EMULATOR_HOST", "https://spanner.googleapis.com")?;
        let site = Site {
            store: format!("spanner://{project}/{instance}/{database}"),
            denied_hint: DENIED_HINT.to_owned(),
            missing: format!("database `{database}` of instance `{instance}`, or its table `{TABLE}`,"),
            missing_hint: format!(
                "make it with `gcloud spanner databases create {database} --project={project} --instance={instance} \
                 --ddl='{TABLE_STATEMENT}'`"
            ),
        };
        Ok(Database { service: Arc::new(service), project, instance, database, site })
    }

    fn instance_path(&self) -> String {
        format!("projects/{}/instances/{}", self.project, self.instance)
    }

    /// The database's name in requests.
    pub(super) fn path(&self) -> String {
        format!("{}/databases/{}", self.instance_path(), self.database)
    }

    /// The context of requests about the database.
    pub(super) fn caller(&self) -> Caller {
        Caller::new(Arc::clone(&self.service), &format!("database={}", self.path()))
    }

    /// Creates the database and its instance. It is not an error if they exist.
    pub(super) async fn make(&self) -> Result<(), Failure> {
        let instance = CreateInstanceRequest {
            parent: format!("projects/{}", self.project),
            instance_id: self.instance.clone(),
            instance: Some(Instance {
                name: self.instance_path(),
                config: format!("projects/{}/instanceConfigs/emulator-config", self.project),
                display_name: self.instance.clone(),
                node_count: 1,
            }),
        };
        self.administer("/google.spanner.admin.instance.v1.InstanceAdmin/CreateInstance", instance).await?;
        let database = CreateDatabaseRequest {
            parent: self.instance_path(),
            create_statement: format!("CREATE DATABASE `{}`", self.database),
            extra_statements: vec![TABLE_STATEMENT.to_owned()],
        };
        self.administer("/google.spanner.admin.database.v1.DatabaseAdmin/CreateDatabase", database).await
    }

    async fn administer<M>(&self, path: &'static str, message: M) -> Result<(), Failure>
    where
        M: prost::Message + Default + 'static,
    {
        let mut caller = Caller::new(Arc::clone(&self.service), &format!("parent={}", self.instance_path()));
        let request = caller.request(message).await?;
        let mut client = Grpc::new(self.service.channel());
        let path = PathAndQuery::from_static(path);
        let made = answer(async {
            client.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
            client.unary::<M, (), _>(request, path, ProstCodec::default()).await
        });
        match made.await {
            Ok(_) | Err(Failure::Answered(Code::AlreadyExists, _)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}

/// `google.spanner.admin.instance.v1.CreateInstanceRequest`, with the fields that are used.
#[derive(Clone, PartialEq, prost::Message)]
struct CreateInstanceRequest {
    #[prost(string, tag = "1")]
    parent: String,
    #[prost(string, tag = "2")]
    instance_id: String,
    #[prost(message, optional, tag = "3")]
    instance: Option<Instance>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Instance {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    config: String,
    #[prost(string, tag = "3")]
    display_name: String,
    #[prost(int32, tag = "5")]
    node_count: i32,
}

/// `google.spanner.admin.database.v1.CreateDatabaseRequest`, with the fields that are used.
#[derive(Clone, PartialEq, prost::Message)]
struct CreateDatabaseRequest {
    #[prost(string, tag = "1")]
    parent: String,
    #[prost(string, tag = "2")]
    create_statement: String,
    #[prost(string, repeated, tag = "3")]
    extra_statements: Vec<String>,
}
