//! The metrics that every process has: its own resources, its build, the registry for all others.

use std::borrow::Cow;
use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

/// Makes a registry whose metrics all carry these labels, with the process's own metrics in it.
pub fn registry<const N: usize>(labels: [(&'static str, &str); N]) -> Registry {
    let labels = labels.map(|(name, value)| (Cow::from(name), Cow::from(value.to_owned())));
    let mut registry = Registry::with_labels(labels.into_iter());
    let build = Info::new([("os", std::env::consts::OS), ("arch", std::env::consts::ARCH)]);
    registry.register("watchfire_build", "What is running", build);
    registry.register_collector(Box::new(Process { start: start_time() }));
    registry
}

/// The process as `/proc` shows it; what can't be read is left out of the answer.
#[derive(Debug)]
struct Process {
    start: Option<f64>,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let gauges = [
            ("process_resident_memory", "Memory in use", Some(Unit::Bytes), resident_bytes()),
            ("process_open_fds", "Open file descriptors", None, open_files()),
            ("process_start_time", "When the process started, since the epoch", Some(Unit::Seconds), self.start),
        ];
        for (name, help, unit, value) in gauges {
            if let Some(value) = value {
                let gauge = ConstGauge::new(value);
                gauge.encode(encoder.encode_descriptor(name, help, unit.as_ref(), gauge.metric_type())?)?;
            }
        }
        let cpu = ConstCounter::new(cpu_seconds());
        let (name, help) = ("process_cpu", "Processor time used, user and system");
        cpu.encode(encoder.encode_descriptor(name, help, Some(&Unit::Seconds), cpu.metric_type())?)
    }
}

/// The number after `VmRSS:`, which the kernel gives in KiB.
#[expect(clippy::cast_precision_loss, reason = "exact up to 8 PiB")]
fn resident_bytes() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kib: u64 =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.split_whitespace().next()?.parse().ok()?;
    Some((kib * 1024) as f64)
}

#[expect(clippy::cast_precision_loss, reason = "a count of files")]
fn open_files() -> Option<f64> {
    // One of them is the directory being read.
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64)
}

#[expect(clippy::cast_precision_loss, reason = "a nanosecond in a hundred days does not matter")]
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Field 22 of `/proc/self/stat`, in ticks since boot, on top of the time of boot.
#[expect(clippy::cast_precision_loss, reason = "seconds since the epoch with two decimals")]
fn start_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in parentheses and may hold anything, also more of them.
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let boot = fs::read_to_string("/proc/stat").ok()?;
    let boot: u64 = boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot as f64 + ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn value(text: &str, name: &str) -> f64 {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {text}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    }

    #[test]
    fn the_process_tells_what_it_uses() {
        let mut text = String::new();
        encode(&mut text, &registry([("component", "sentinel"), ("version", "1.2.3")])).unwrap();
        assert!(value(&text, "process_resident_memory_bytes{") > 1e6);
        assert!(value(&text, "process_open_fds{") >= 3.0);
        assert!(value(&text, "process_cpu_seconds_total{") > 0.0);
        let now = crate::clock::now().as_duration().as_secs_f64();
        let age = now - value(&text, "process_start_time_seconds{");
        assert!((-2.0..3600.0).contains(&age), "{age}");
        let build = text.lines().find(|line| line.starts_with("watchfire_build_info{")).unwrap();
        for label in ["component=\"sentinel\"", "version=\"1.2.3\"", "os=\"linux\"", "arch=\""] {
            assert!(build.contains(label), "{build}");
        }
        assert!(text.lines().filter(|line| !line.starts_with('#')).all(|line| line.contains("version=\"1.2.3\"")));
    }
}
