//! The volumes of a pod: `emptyDir`, `configMap`, `secret`, `downwardAPI`, and `projected` ones of these and a token.
//!
//! They are filled once, before its containers start: later changes of a ConfigMap do not reach them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, Container, DownwardAPIProjection, DownwardAPIVolumeFile, KeyToPath, SecretProjection, Volume,
    VolumeProjection,
};

use super::pod::Pod;
use super::sources::{Keys, Kind};

/// What a container finds at a place.
pub(super) struct Mount {
    pub(super) source: PathBuf,
    pub(super) target: String,
    /// `ro` or `rw`.
    pub(super) mode: &'static str,
}

struct File {
    path: String,
    bytes: Vec<u8>,
    mode: Option<i32>,
}

/// What is in a volume, and the mode of its files; none if it is of another kind.
pub(super) fn content(volume: &Volume) -> Option<(Vec<VolumeProjection>, Option<i32>)> {
    let mut only = VolumeProjection::default();
    let mode = if volume.empty_dir.is_some() {
        return Some((Vec::new(), None));
    } else if let Some(projected) = &volume.projected {
        let sources = projected.sources.clone().unwrap_or_default();
        let known = sources.iter().all(|source| source.cluster_trust_bundle.is_none());
        return known.then_some((sources, projected.default_mode));
    } else if let Some(map) = volume.config_map.clone() {
        only.config_map = Some(ConfigMapProjection { items: map.items, name: map.name, optional: map.optional });
        map.default_mode
    } else if let Some(secret) = volume.secret.clone() {
        let name = secret.secret_name.unwrap_or_default();
        only.secret = Some(SecretProjection { items: secret.items, name, optional: secret.optional });
        secret.default_mode
    } else if let Some(fields) = volume.downward_api.clone() {
        only.downward_api = Some(DownwardAPIProjection { items: fields.items });
        fields.default_mode
    } else {
        return None;
    };
    Some((vec![only], mode))
}

/// Writes all volumes of a pod, or says what is missing.
pub(super) async fn fill(pod: &Pod) -> Result<(), String> {
    for volume in pod.spec.volumes.iter().flatten() {
        let dir = pod.volume_dir(&volume.name);
        std::fs::create_dir_all(&dir).expect("make a directory for a volume");
        let (sources, mode) = content(volume).unwrap_or_default();
        for source in &sources {
            let failed = |problem| format!("MountVolume.SetUp failed for volume {:?}: {problem}", volume.name);
            for file in files(pod, source).await.map_err(failed)? {
                write(&dir.join(&file.path), &file.bytes, file.mode.or(mode));
            }
        }
    }
    Ok(())
}

async fn files(pod: &Pod, source: &VolumeProjection) -> Result<Vec<File>, String> {
    let mut files = Vec::new();
    if let Some(map) = &source.config_map {
        let keys = pod.keys(Kind::ConfigMap, &map.name, map.optional).await?;
        files.extend(pick(keys, map.items.as_deref(), map.optional)?);
    }
    if let Some(secret) = &source.secret {
        let keys = pod.keys(Kind::Secret, &secret.name, secret.optional).await?;
        files.extend(pick(keys, secret.items.as_deref(), secret.optional)?);
    }
    for item in source.downward_api.iter().flat_map(|fields| &fields.items).flatten() {
        files.push(field(pod, item)?);
    }
    if let Some(wanted) = &source.service_account_token {
        let bytes = pod.token(wanted).await?.into_bytes();
        files.push(File { path: wanted.path.clone(), bytes, mode: None });
    }
    Ok(files)
}

fn field(pod: &Pod, item: &DownwardAPIVolumeFile) -> Result<File, String> {
    let field = item.field_ref.as_ref().ok_or("a process node has no resources to tell about")?;
    Ok(File { path: item.path.clone(), bytes: pod.field(&field.field_path)?.into_bytes(), mode: item.mode })
}

/// All keys as files of their names, or those that are asked for.
fn pick(mut keys: Keys, items: Option<&[KeyToPath]>, optional: Option<bool>) -> Result<Vec<File>, String> {
    let Some(items) = items else {
        return Ok(keys.into_iter().map(|(path, bytes)| File { path, bytes, mode: None }).collect());
    };
    let mut files = Vec::new();
    for KeyToPath { key, mode, path } in items {
        match keys.remove(key) {
            Some(bytes) => files.push(File { path: path.clone(), bytes, mode: *mode }),
            None if optional == Some(true) => {}
            None => return Err(format!("references non-existent key: {key}")),
        }
    }
    Ok(files)
}

fn write(path: &Path, bytes: &[u8], mode: Option<i32>) {
    let dir = path.parent().expect("a file of a volume is in it");
    std::fs::create_dir_all(dir).expect("make a directory in a volume");
    std::fs::write(path, bytes).expect("write a file of a volume");
    let mode = mode.map_or(0o644, i32::unsigned_abs);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set the mode of a file");
}

/// Where a container finds the volumes, parents first. What was filled cannot be written, as everywhere.
pub(super) fn mounts(pod: &Pod, container: &Container) -> Vec<Mount> {
    let is_empty = |name: &str| pod.spec.volumes.iter().flatten().any(|it| it.name == name && it.empty_dir.is_some());
    let mounts = container.volume_mounts.iter().flatten().map(|mount| {
        let writable = mount.read_only != Some(true) && is_empty(&mount.name);
        let mut source = pod.volume_dir(&mount.name);
        if let Some(path) = &mount.sub_path {
            source.push(path);
            if is_empty(&mount.name) {
                std::fs::create_dir_all(&source).expect("make a directory in a volume");
            }
        }
        Mount { source, target: mount.mount_path.clone(), mode: if writable { "rw" } else { "ro" } }
    });
    let mut mounts: Vec<_> = mounts.collect();
    mounts.sort_by(|a, b| a.target.cmp(&b.target));
    mounts
}
