//! The rights that a configuration needs, and no more: to get, list and watch each kind where it is watched.

use std::collections::BTreeMap;

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::Client;
use kube::core::ObjectMeta;
use serde::Serialize;

use crate::config::Entry;
use crate::objects::{Unwatchable, discover};

/// Who is given the rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// An object to apply.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Right {
    /// What may be done with kinds that are watched in all namespaces.
    ClusterRole(ClusterRole),
    /// Who may.
    ClusterRoleBinding(ClusterRoleBinding),
    /// What may be done with kinds that are watched in one namespace.
    Role(Role),
    /// Who may.
    RoleBinding(RoleBinding),
}

/// The plural of an entry, as the cluster says.
pub async fn plural(entry: &Entry, client: &Client) -> Result<String, Unwatchable> {
    let namespace = entry.places().into_iter().flatten().next();
    Ok(discover(client, entry, namespace).await?.plural)
}

/// The roles of the entries, with their plurals, and who has them.
pub fn rights(entries: &[Entry], plurals: &[String], account: &ServiceAccount) -> Vec<Right> {
    // By namespace, none first, and by group.
    let mut places: BTreeMap<Option<&str>, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for (entry, plural) in entries.iter().zip(plurals) {
        for namespace in entry.places() {
            places.entry(namespace).or_default().entry(&entry.group).or_default().push(plural);
        }
    }
    let ServiceAccount { namespace: home, name: whom } = account;
    // Two of one name in two namespaces have roles of their own.
    let name = format!("{home}-{whom}");
    let subjects = || {
        let (kind, namespace) = ("ServiceAccount".to_owned(), Some(home.clone()));
        Some(vec![Subject { kind, namespace, name: whom.clone(), api_group: None }])
    };
    let role = |kind: &str| {
        let api_group = "rbac.authorization.k8s.io".to_owned();
        RoleRef { api_group, kind: kind.to_owned(), name: name.clone() }
    };
    let mut rights = Vec::new();
    for (namespace, groups) in places {
        let rules = Some(groups.into_iter().map(|(group, plurals)| rule(group, plurals)).collect());
        let metadata =
            ObjectMeta { name: Some(name.clone()), namespace: namespace.map(str::to_owned), ..ObjectMeta::default() };
        let (subjects, of) = (subjects(), metadata.clone());
        if namespace.is_none() {
            rights.push(Right::ClusterRole(ClusterRole { metadata, rules, ..ClusterRole::default() }));
            let role_ref = role("ClusterRole");
            rights.push(Right::ClusterRoleBinding(ClusterRoleBinding { metadata: of, role_ref, subjects }));
        } else {
            rights.push(Right::Role(Role { metadata, rules }));
            rights.push(Right::RoleBinding(RoleBinding { metadata: of, role_ref: role("Role"), subjects }));
        }
    }
    rights
}

fn rule(group: &str, mut plurals: Vec<&str>) -> PolicyRule {
    plurals.sort_unstable();
    plurals.dedup();
    let owned = |all: &[&str]| all.iter().map(|&it| it.to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(owned(&plurals)),
        verbs: owned(&["get", "list", "watch"]),
        ..PolicyRule::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_allowed_where_it_is_watched_and_nowhere_else() {
        let entry = |group: &str, kind: &str, namespaces: Option<&[&str]>| Entry {
            group: group.into(),
            version: "v1".into(),
            kind: kind.into(),
            resource: None,
            namespaces: namespaces.map(|all| all.iter().map(|&namespace| namespace.to_owned()).collect()),
        };
        let entries = [
            entry("", "Pod", None),
            entry("", "Node", None),
            entry("apps", "Deployment", Some(&["a", "b"])),
            entry("", "Secret", Some(&["b"])),
        ];
        let plurals = ["pods", "nodes", "deployments", "secrets"].map(str::to_owned);
        let account = ServiceAccount { namespace: "ops".into(), name: "beacon".into() };
        let told: Vec<_> = rights(&entries, &plurals, &account)
            .into_iter()
            .map(|right| {
                let (place, rules) = match right {
                    Right::ClusterRole(role) => ("all".to_owned(), role.rules),
                    Right::Role(role) => (role.metadata.namespace.unwrap(), role.rules),
                    Right::ClusterRoleBinding(ClusterRoleBinding { role_ref, subjects, .. })
                    | Right::RoleBinding(RoleBinding { role_ref, subjects, .. }) => {
                        let subject = subjects.unwrap().remove(0);
                        let whom = format!("{}/{}", subject.namespace.unwrap(), subject.name);
                        return format!("{} for {whom}", role_ref.kind);
                    }
                };
                let rule = |rule: PolicyRule| {
                    assert_eq!(rule.verbs, ["get", "list", "watch"]);
                    format!("{:?} {:?}", rule.api_groups.unwrap(), rule.resources.unwrap())
                };
                format!("{place}: {}", rules.unwrap().into_iter().map(rule).collect::<Vec<_>>().join(", "))
            })
            .collect();
        assert_eq!(
            told,
            [
                r#"all: [""] ["nodes", "pods"]"#,
                "ClusterRole for ops/beacon",
                r#"a: ["apps"] ["deployments"]"#,
                "Role for ops/beacon",
                r#"b: [""] ["secrets"], ["apps"] ["deployments"]"#,
                "Role for ops/beacon",
            ]
        );
    }
}
