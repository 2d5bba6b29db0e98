//! The kinds of resources a simulated fleet has: their plural, their parent, and the adapters that must report.

/// The path below which every resource lives.
pub const BASE: &str = "/api/hyperfleet/v1";

/// One kind of resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    /// As in the resource's `kind`, for example `Cluster`.
    pub name: String,
    /// As in the path, for example `clusters`.
    pub plural: String,
    /// The plural of the kind that owns it.
    pub parent: Option<String>,
    /// The adapters whose reports make a resource reconciled; none means that it has no conditions and no soft delete.
    pub required_adapters: Vec<String>,
    /// The longest name allowed.
    pub max_name: usize,
}

impl Kind {
    /// Describes a kind without parent.
    pub fn new(name: &str, plural: &str, required_adapters: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            plural: plural.to_owned(),
            parent: None,
            required_adapters: required_adapters.iter().map(|&adapter| adapter.to_owned()).collect(),
            max_name: 53,
        }
    }

    /// The `clusters` of today's deployments: validation and dns report.
    pub fn clusters() -> Self {
        Self::new("Cluster", "clusters", &["validation", "dns"])
    }

    /// The `nodepools` of today's deployments: owned by a cluster, validation reports.
    pub fn nodepools() -> Self {
        Self {
            parent: Some("clusters".to_owned()),
            max_name: 15,
            ..Self::new("NodePool", "nodepools", &["validation"])
        }
    }
}

/// Where a resource is served: nested under its owner if it has one.
pub fn href(kind: &Kind, id: &str, owner: Option<&str>) -> String {
    match (&kind.parent, owner) {
        (Some(parent), Some(owner)) => format!("{BASE}/{parent}/{owner}/{}/{id}", kind.plural),
        _ => format!("{BASE}/{}/{id}", kind.plural),
    }
}
