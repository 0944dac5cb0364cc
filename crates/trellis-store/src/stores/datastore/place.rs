//! The project and namespace, and the representation of a value as an entity.
//!
//! | property | |
//! |---|---|
//! | `bytes` | the content; not indexed |
//! | `marks` | the changes that wrote it last; not indexed |
//! | `group` | region and kind, for values and logs only; indexed, so that they can be listed |

use std::collections::HashMap;
use std::sync::Arc;

use googleapis_tonic_google_datastore_v1::google::datastore::v1 as api;

use crate::error::StoreError;
use crate::key::Kind;
use crate::stores::google::{Caller, DENIED_HINT, Service, parts};
use crate::stores::grpc::failure::Site;
use crate::stores::grpc::flat;

/// The kind of all entities.
pub(super) const KIND: &str = "Trellis";
/// The property that holds region and kind.
pub(super) const GROUP: &str = "group";
const BYTES: &str = "bytes";
const MARKS: &str = "marks";

/// The maximum length of a key's name: the name of an entity may have 1,500 bytes, and each byte takes two.
pub(super) const NAME_BYTES_MAX: usize = 700;

/// A project and namespace.
pub(super) struct Place {
    pub(super) service: Arc<Service>,
    pub(super) project: String,
    namespace: String,
    pub(super) site: Site,
}

/// The content of an entity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    pub(super) marks: Vec<u8>,
}

impl Place {
    /// Parses `PROJECT[/NAMESPACE]`.
    pub(super) fn find(url: &str, rest: &str) -> Result<Place, StoreError> {
        let path = rest.split_once('?').map_or(rest, |(path, _)| path).trim_end_matches('/');
        let (project, namespace) = if path.contains('/') {
            let [project, namespace] = parts(url, rest, ["PROJECT", "NAMESPACE"])?;
            (project, namespace)
        } else {
            let [project] = parts(url, rest, ["PROJECT[/NAMESPACE]"])?;
            (project, String::new())
        };
        let service = Service::find(url, "DATASTORE_EMULATOR_HOST", "https://datastore.googleapis.com")?;
        let site = Site {
            store: format!("datastore://{path}"),
            denied_hint: DENIED_HINT.to_owned(),
            missing: format!("the Datastore of project `{project}`"),
            missing_hint: format!(
                "make it with `gcloud firestore databases create --type=datastore-mode --location=LOCATION \
                 --project={project}`"
            ),
        };
        Ok(Place { service: Arc::new(service), project, namespace, site })
    }

    /// The context of requests about the namespace.
    pub(super) fn caller(&self) -> Caller {
        Caller::new(Arc::clone(&self.service), &format!("project_id={}", self.project))
    }

    /// The namespace in the form of the service.
    pub(super) fn partition(&self) -> api::PartitionId {
        api::PartitionId {
            project_id: self.project.clone(),
            namespace_id: self.namespace.clone(),
            ..api::PartitionId::default()
        }
    }

    /// The key of the entity at a place.
    pub(super) fn key(&self, place: &[u8]) -> api::Key {
        let name = place.iter().map(|byte| format!("{byte:02x}")).collect();
        let element =
            api::key::PathElement { kind: KIND.to_owned(), id_type: Some(api::key::path_element::IdType::Name(name)) };
        api::Key { partition_id: Some(self.partition()), path: vec![element] }
    }

    /// An entity that holds these bytes.
    pub(super) fn entity(&self, place: &[u8], bytes: &[u8], marks: &[u8]) -> api::Entity {
        let blob = |bytes: &[u8]| api::Value {
            exclude_from_indexes: true,
            value_type: Some(api::value::ValueType::BlobValue(bytes.to_vec())),
            ..api::Value::default()
        };
        let mut properties = HashMap::from([(BYTES.to_owned(), blob(bytes)), (MARKS.to_owned(), blob(marks))]);
        if let Some(key) = flat::key(place) {
            properties.insert(GROUP.to_owned(), group(key.region(), key.kind()));
        }
        api::Entity { key: Some(self.key(place)), properties }
    }
}

/// The group of all entities of one kind of key in a region.
pub(super) fn group(region: u32, kind: Kind) -> api::Value {
    let number = i64::from(region) << 8 | i64::from(kind as u8);
    api::Value { value_type: Some(api::value::ValueType::IntegerValue(number)), ..api::Value::default() }
}

/// The place of an entity.
pub(super) fn place(key: &api::Key) -> Option<Vec<u8>> {
    let Some(api::key::path_element::IdType::Name(name)) = &key.path.last()?.id_type else { return None };
    let digits = name.as_bytes().chunks_exact(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// The content of an entity; `None` if it is not one of this store's.
pub(super) fn content(entity: &mut api::Entity) -> Option<Content> {
    let mut blob = |name: &str| match entity.properties.remove(name)?.value_type? {
        api::value::ValueType::BlobValue(bytes) => Some(bytes),
        _ => None,
    };
    Some(Content { bytes: blob(BYTES)?, marks: blob(MARKS)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    #[test]
    fn what_lies_in_an_entity_survives() {
        let here = Place::find("datastore://p/n?emulator=h:1", "p/n?emulator=h:1").unwrap();
        assert_eq!(here.site.store, "datastore://p/n");
        let at = flat::value(&Key::named(7, b"\x00\xff"));
        let mut entity = here.entity(&at, b"bytes", b"mark");
        assert_eq!(place(entity.key.as_ref().unwrap()), Some(at));
        assert_eq!(entity.properties[GROUP], group(7, Kind::Named));
        let expected = Content { bytes: b"bytes".to_vec(), marks: b"mark".to_vec() };
        assert_eq!(content(&mut entity), Some(expected));
        assert_eq!(content(&mut entity), None, "it has none of our properties now");
        let entry = here.entity(&flat::entry(&Key::new(7, Kind::Log, 1), 1), b"", b"");
        assert!(!entry.properties.contains_key(GROUP), "entries are not listed");
    }

    #[test]
    fn a_namespace_is_optional() {
        assert_eq!(Place::find("datastore://p?emulator=h:1", "p?emulator=h:1").unwrap().namespace, "");
        for wrong in ["", "/n", "p/n/more"] {
            assert!(Place::find(&format!("datastore://{wrong}"), wrong).is_err(), "{wrong}");
        }
    }
}
