//! Tests with the files of whole hosts: a server, a board, a virtual machine, a container, and a host with
//! malformed files.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;
use stemma_core::input;
use stemma_core::input::facts::{Fact, FactType, STABLE_FACTS};

use super::*;

/// The files of a host, as pairs of path and content. A path of the form `path -> target` is a symbolic link. A path
/// that ends in `/` is a directory.
type TestFiles<'a> = &'a [(&'a str, &'a str)];

/// Creates the files, links and directories of a host below `dir`.
fn create_files(dir: &Path, files: TestFiles<'_>) {
    for (path, content) in files {
        if let Some((path, target)) = path.split_once(" -> ") {
            let link = dir.join(path);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(target, link).unwrap();
        } else if path.ends_with('/') {
            fs::create_dir_all(dir.join(path)).unwrap();
        } else {
            let file = dir.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
    }
}

/// Returns the facts that the kernel and the processor of a test host report. `source` is the source address of
/// outgoing traffic, or an empty text. The signature of the hypervisor is that of KVM.
fn kernel_facts(machine: &str, node: &str, ipv4: &[(&str, &str)], source: &str) -> KernelFacts {
    KernelFacts {
        uname: Uname { system: "Linux".into(), node: node.into(), release: "6.1.0-18".into(), machine: machine.into() },
        ipv4: ipv4.iter().map(|(name, address)| ((*name).to_owned(), address.parse().unwrap())).collect(),
        source: source.parse::<IpAddr>().ok(),
        signature: || *b"KVMKVMKVM\0\0\0",
    }
}

/// Collects the facts of a host with these files twice. Panics if their form is wrong, or the stable facts differ.
fn collect_from(files: TestFiles<'_>, kernel: &KernelFacts) -> HostFacts {
    let dir = tempfile::tempdir().unwrap();
    create_files(dir.path(), files);
    let root = HostRoot::new(dir.path());
    let facts = collect(&root, kernel);
    assert_eq!(collect(&root, kernel).stable, facts.stable);
    check_facts(&facts);
    facts
}

/// Returns the definition of a stable fact by its dotted path. Panics if the registry does not have the path.
fn registry_fact(path: &str) -> &'static Fact {
    let path = input::Path::new(path.split('.')).unwrap();
    STABLE_FACTS.iter().find(|fact| fact.matches_path(&path)).unwrap_or_else(|| panic!("facts{path} is not in the registry"))
}

/// Panics if a stable fact is not in the registry [`STABLE_FACTS`] or has another type than there, if a volatile fact
/// is not a number or is in the registry, or if the traits are not sorted or are more than 50.
fn check_facts(facts: &HostFacts) {
    for (path, text) in &facts.stable {
        let value: Value = serde_json::from_str(text).unwrap();
        assert_eq!(canonical_json(&value), *text, "{path}");
        assert!(registry_fact(path).accepts(&value), "{path} {text}");
    }
    for (path, text) in &facts.volatile {
        assert!(serde_json::from_str::<Value>(text).unwrap().is_number(), "{path} {text}");
        let path = input::Path::new(path.split('.')).unwrap();
        assert!(!STABLE_FACTS.iter().any(|fact| fact.matches_path(&path)), "{path} is both stable and volatile");
    }
    assert!(facts.traits.is_sorted() && facts.traits.len() <= 50);
}

fn stable_text(facts: &HostFacts) -> String {
    facts.stable.iter().map(|(path, text)| format!("{path} = {text}\n")).collect()
}

const CPUINFO: &str = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Gold 6430\n\
    flags\t\t: fpu sse sse2 ht vmx ssse3 sse4_2 aes avx avx2\n";
const V6_ROUTE: &str = "fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 1 0 00000001     eth0\n";

/// The files of a server with two disks, a bonded network card and UEFI.
const SERVER: TestFiles<'static> = &[
    ("proc/cpuinfo", CPUINFO),
    ("proc/meminfo", "MemTotal:       527968736 kB\nMemAvailable:   500000000 kB\nSwapTotal: 8388604 kB\nSwapFree: 8388604 kB\n"),
    ("proc/uptime", "351735.47 234388.90\n"),
    ("proc/loadavg", "0.52 0.58 1.59 1/467 12345\n"),
    ("proc/net/route", "Iface\tDestination\nbond0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"),
    (
        "proc/net/if_inet6",
        "20010db8000000000000000000000010 05 40 00 80    bond0\n20010db80000000000000000000000ff 05 40 00 01    bond0\nfe80000000000000a6bf01fffe000001 05 40 20 80    bond0\n00000000000000000000000000000001 01 80 10 80       lo\n",
    ),
    ("sys/devices/system/cpu/online", "0-3\n"),
    ("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,2\n"),
    ("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "1,3\n"),
    ("sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "0,2\n"),
    ("sys/devices/system/cpu/cpu3/topology/thread_siblings_list", "1,3\n"),
    ("sys/class/dmi/id/sys_vendor", "Dell Inc.\n"),
    ("sys/class/dmi/id/product_name", "PowerEdge R750\n"),
    ("sys/class/dmi/id/board_name", "0PJ80M\n"),
    ("sys/class/dmi/id/product_serial", "\n"),
    ("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", "\u{6}\0\0\0\u{1}"),
    ("sys/firmware/dmi/", ""),
    ("sys/class/tpm/tpm0/tpm_version_major", "2\n"),
    ("sys/class/tpm/tpm0/device/driver -> ../../bus/acpi/drivers/tpm_crb", ""),
    ("sys/class/net/lo/mtu", "65536\n"),
    ("sys/class/net/eno1/mtu", "9000\n"),
    ("sys/class/net/eno1/address", "b0:7b:25:00:00:01\n"),
    ("sys/class/net/eno1/addr_assign_type", "0\n"),
    ("sys/class/net/eno1/device/sriov_totalvfs", "64\n"),
    ("sys/class/net/bond0/mtu", "9000\n"),
    ("sys/class/net/bond0/address", "b0:7b:25:00:00:01\n"),
    ("sys/class/net/bond0/uevent", "DEVTYPE=bond\nINTERFACE=bond0\n"),
    ("sys/class/net/bond0/lower_eno1 -> ../eno1", ""),
    ("sys/class/net/docker0/address", "02:42:00:00:00:01\n"),
    ("sys/class/net/docker0/uevent", "DEVTYPE=bridge\n"),
    ("sys/block/sda/device/model", "ST8000NM000A-2KE\n"),
    ("sys/block/sda/queue/rotational", "1\n"),
    ("sys/block/sda/size", "15628053168\n"),
    ("sys/block/nvme0n1/device/model", "SAMSUNG MZQL2960HCJR-00A07              \n"),
    ("sys/block/nvme0n1/queue/rotational", "0\n"),
    ("sys/block/nvme0n1/size", "1875385008\n"),
    ("sys/block/loop0/size", "8\n"),
    ("sys/block/sr0/device/model", "DVD\n"),
    ("sys/block/sr0/removable", "1\n"),
    ("sys/block/sr0/size", "2097151\n"),
    (
        "etc/os-release",
        "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\nVERSION_CODENAME=bookworm\nID=debian\n",
    ),
    ("etc/hosts", "127.0.0.1 localhost\n10.0.0.10 db-1.example.net db-1\n"),
    ("etc/localtime -> ../usr/share/zoneinfo/Europe/Berlin", ""),
    ("usr/share/zoneinfo/Europe/Berlin", "TZif2"),
];

/// The stable facts that the agent must collect from the files of [`SERVER`], one `path = value` in each line.
const SERVER_STABLE: &str = r#"architecture = "x86_64"
cpu.cores = 2
cpu.count = 4
cpu.model = "Intel(R) Xeon(R) Gold 6430"
cpu.vendor = "GenuineIntel"
disks.nvme0n1.model = "SAMSUNG MZQL2960HCJR-00A07"
disks.nvme0n1.rotational = false
disks.nvme0n1.size_bytes = 960197124096
disks.sda.model = "ST8000NM000A-2KE"
disks.sda.rotational = true
disks.sda.size_bytes = 8001563222016
dmi.board = "0PJ80M"
dmi.product = "PowerEdge R750"
dmi.vendor = "Dell Inc."
firmware = "uefi"
fqdn = "db-1.example.net"
hostname = "db-1"
kernel.name = "Linux"
kernel.release = "6.1.0-18"
memory.total_bytes = 540639985664
network.address = "10.0.0.10"
network.addresses = ["10.0.0.10","2001:db8::10"]
network.interfaces.bond0.addresses = ["10.0.0.10","2001:db8::10"]
network.interfaces.bond0.mac = "b0:7b:25:00:00:01"
network.interfaces.bond0.mtu = 9000
network.interfaces.eno1.mac = "b0:7b:25:00:00:01"
network.interfaces.eno1.mtu = 9000
os.codename = "bookworm"
os.id = "debian"
os.name = "Debian GNU/Linux 12 (bookworm)"
os.version = "12"
swap.total_bytes = 8589930496
timezone = "Europe/Berlin"
virtualization = "none"
"#;

/// The volatile facts that the agent must collect from the files of [`SERVER`], each as `path=value`.
const SERVER_VOLATILE: &[&str] = &[
    "load.15m=1.59",
    "load.1m=0.52",
    "load.5m=0.58",
    "memory.available_bytes=512000000000",
    "swap.free_bytes=8589930496",
    "uptime_seconds=351735",
];

/// The traits that the agent must detect from the files of [`SERVER`].
const SERVER_TRAITS: &[&str] = &[
    "COMPUTE_ARCH_X86_64",
    "COMPUTE_FIRMWARE_UEFI",
    "COMPUTE_SECURITY_TPM_2_0",
    "COMPUTE_SECURITY_TPM_CRB",
    "COMPUTE_SECURITY_UEFI_SECURE_BOOT",
    "HW_ARCH_X86_64",
    "HW_CPU_HYPERTHREADING",
    "HW_CPU_X86_AESNI",
    "HW_CPU_X86_AVX",
    "HW_CPU_X86_AVX2",
    "HW_CPU_X86_INTEL_VMX",
    "HW_CPU_X86_SSE",
    "HW_CPU_X86_SSE2",
    "HW_CPU_X86_SSE42",
    "HW_CPU_X86_SSSE3",
    "HW_CPU_X86_VMX",
    "HW_NIC_SRIOV",
    "STORAGE_DISK_HDD",
    "STORAGE_DISK_SSD",
];

#[test]
fn collect_reads_server() {
    let addresses = [("lo", "127.0.0.1"), ("bond0", "10.0.0.10"), ("docker0", "172.17.0.1")];
    let facts = collect_from(SERVER, &kernel_facts("x86_64", "db-1", &addresses, "10.0.0.10"));
    assert_eq!(stable_text(&facts), SERVER_STABLE);
    let volatile_facts: Vec<String> = facts.volatile.iter().map(|(path, text)| format!("{path}={text}")).collect();
    assert_eq!(volatile_facts, SERVER_VOLATILE);
    assert_eq!(facts.traits, SERVER_TRAITS);
    assert!(facts.findings.is_empty());
}

#[test]
fn collect_reads_arm_board() {
    let files: TestFiles<'_> = &[
        (
            "proc/cpuinfo",
            "processor\t: 0\nFeatures\t: fp asimd evtstrm crc32 cpuid\nCPU implementer\t: 0x41\nCPU part\t: 0xd08\n\nprocessor\t: 1\n\nRevision\t: c03114\nModel\t\t: Raspberry Pi 4 Model B Rev 1.4\n",
        ),
        ("proc/meminfo", "MemTotal:        3884328 kB\n"),
        ("proc/device-tree/model", "Raspberry Pi 4 Model B Rev 1.4\0"),
        ("sys/class/net/eth0/address", "dc:a6:32:00:00:01\n"),
        ("sys/class/net/eth0/device/", ""),
        ("sys/class/net/eth0.7/uevent", "DEVTYPE=vlan\n"),
        ("sys/class/net/eth0.7/lower_eth0 -> ../eth0", ""),
        ("sys/block/mmcblk0/device/name", "SD64G\n"),
        ("sys/block/mmcblk0/queue/rotational", "0\n"),
        ("sys/block/mmcblk0/size", "124735488\n"),
        ("sys/block/mmcblk0boot0/device/name", "SD64G\n"),
        ("sys/block/mmcblk0boot0/size", "8192\n"),
        ("usr/lib/os-release", "ID=alpine\n"),
        ("etc/localtime", "TZif2"),
        ("etc/timezone", "Asia/Tokyo\n"),
        ("usr/share/zoneinfo/Asia/Tokyo", "TZif2"),
    ];
    let facts = collect_from(files, &kernel_facts("aarch64", "pi.example.net", &[("eth0.7", "192.168.7.2")], ""));
    assert_eq!(
        stable_text(&facts),
        r#"architecture = "aarch64"
cpu.count = 2
cpu.model = "Cortex-A72"
cpu.vendor = "ARM"
disks.mmcblk0.model = "SD64G"
disks.mmcblk0.rotational = false
disks.mmcblk0.size_bytes = 63864569856
fqdn = "pi.example.net"
hostname = "pi"
kernel.name = "Linux"
kernel.release = "6.1.0-18"
memory.total_bytes = 3977551872
network.addresses = ["192.168.7.2"]
network.interfaces.eth0.mac = "dc:a6:32:00:00:01"
os.id = "alpine"
timezone = "Asia/Tokyo"
virtualization = "none"
"#
    );
    assert_eq!(
        facts.traits,
        [
            "COMPUTE_ARCH_AARCH64",
            "HW_ARCH_AARCH64",
            "HW_CPU_AARCH64_ASIMD",
            "HW_CPU_AARCH64_CPUID",
            "HW_CPU_AARCH64_CRC32",
            "HW_CPU_AARCH64_EVTSTRM",
            "HW_CPU_AARCH64_FP",
            "STORAGE_DISK_SSD",
        ]
    );
}

/// The disk has no fact `rotational`, because the kernel of a virtual machine assumes rotation. The firmware is a BIOS,
/// because DMI tables exist and UEFI does not.
#[test]
fn collect_reads_virtual_machine() {
    let files: TestFiles<'_> = &[
        ("proc/cpuinfo", "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\nflags\t\t: sse2 hypervisor\n"),
        ("sys/devices/system/cpu/online", "0\n"),
        ("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0\n"),
        ("sys/class/dmi/id/sys_vendor", "QEMU\n"),
        ("sys/class/dmi/id/product_name", "Standard PC (Q35 + ICH9, 2009)\n"),
        ("sys/class/dmi/id/product_uuid", "4C4C4544-0042-3510-8051-B7C04F4E3233\n"),
        ("sys/firmware/dmi/", ""),
        ("sys/block/vda/device/", ""),
        ("sys/block/vda/queue/rotational", "1\n"),
        ("sys/block/vda/size", "41943040\n"),
        ("etc/localtime -> ../usr/share/zoneinfo/Etc/UTC", ""),
        ("usr/share/zoneinfo/Etc/UTC", "TZif2"),
    ];
    let facts = collect_from(files, &kernel_facts("x86_64", "vm", &[], ""));
    assert_eq!(
        stable_text(&facts),
        r#"architecture = "x86_64"
cpu.cores = 1
cpu.count = 1
cpu.model = "AMD EPYC"
cpu.vendor = "AuthenticAMD"
disks.vda.size_bytes = 21474836480
dmi.product = "Standard PC (Q35 + ICH9, 2009)"
dmi.uuid = "4c4c4544-0042-3510-8051-b7c04f4e3233"
dmi.vendor = "QEMU"
firmware = "bios"
hostname = "vm"
kernel.name = "Linux"
kernel.release = "6.1.0-18"
timezone = "Etc/UTC"
virtualization = "kvm"
"#
    );
    assert_eq!(facts.traits, ["COMPUTE_ARCH_X86_64", "COMPUTE_FIRMWARE_BIOS", "HW_ARCH_X86_64", "HW_CPU_X86_SSE2"]);
}

/// The files about DMI and the disk describe the machine that the container runs on, so they give no facts. The
/// hardware address of `host0` is random (`addr_assign_type` is 1), so it is not a fact.
#[test]
fn collect_omits_hardware_in_container() {
    let files: TestFiles<'_> = &[
        ("run/systemd/container", "systemd-nspawn\n"),
        ("proc/cpuinfo", CPUINFO),
        ("proc/net/route", "Iface\nhost0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"),
        ("proc/net/ipv6_route", V6_ROUTE),
        ("sys/class/dmi/id/sys_vendor", "Dell Inc.\n"),
        ("sys/class/net/host0/address", "5e:00:00:00:00:01\n"),
        ("sys/class/net/host0/addr_assign_type", "1\n"),
        ("sys/class/net/host0/mtu", "1500\n"),
        ("sys/class/net/lo/mtu", "65536\n"),
        ("sys/block/sda/device/model", "ST8000NM000A-2KE\n"),
        ("sys/block/sda/size", "15628053168\n"),
        ("etc/os-release", "ID=fedora\nVERSION_ID=41\n"),
    ];
    let facts = collect_from(files, &kernel_facts("x86_64", "box", &[("host0", "10.0.0.20")], "10.0.0.20"));
    assert_eq!(
        stable_text(&facts),
        r#"architecture = "x86_64"
cpu.count = 1
cpu.model = "Intel(R) Xeon(R) Gold 6430"
cpu.vendor = "GenuineIntel"
hostname = "box"
kernel.name = "Linux"
kernel.release = "6.1.0-18"
network.address = "10.0.0.20"
network.addresses = ["10.0.0.20"]
network.interfaces.host0.addresses = ["10.0.0.20"]
network.interfaces.host0.mtu = 1500
os.id = "fedora"
os.version = "41"
timezone = "UTC"
virtualization = "systemd-nspawn"
"#
    );
}

/// In this test, the files of the first host are all malformed, and so are the machine name and the host name from
/// `uname`. This host has only the facts that need none of them. A host without files has the time zone UTC.
#[test]
fn collect_ignores_malformed_content() {
    let malformed_text = "\u{0}: \u{fffd}=\"\n:::\n0-\n-\n0x\n\\\n9999999999999999999999 kB\n";
    let paths = [
        "proc/cpuinfo",
        "proc/meminfo",
        "proc/uptime",
        "proc/loadavg",
        "proc/net/route",
        "proc/net/ipv6_route",
        "proc/net/if_inet6",
        "proc/device-tree/hypervisor/compatible",
        "proc/1/environ",
        "sys/devices/system/cpu/online",
        "sys/class/net/eth0/mtu",
        "sys/class/net/eth0/address",
        "sys/class/net/eth0/uevent",
        "sys/class/net/eth0/device/sriov_totalvfs",
        "sys/block/sda/size",
        "sys/block/sda/device/model",
        "sys/block/sda/queue/rotational",
        "sys/class/tpm/tpm0/tpm_version_major",
        "etc/os-release",
        "etc/hosts",
        "etc/localtime",
        "etc/timezone",
    ];
    let files: Vec<(&str, &str)> = paths.iter().map(|path| (*path, malformed_text)).collect();
    let facts = collect_from(&files, &kernel_facts("pdp\n11", "a_b\n", &[], ""));
    assert_eq!(facts.traits, Vec::<String>::new());
    assert_eq!(facts.stable.keys().collect::<Vec<_>>(), ["kernel.name", "kernel.release", "virtualization"]);
    assert_eq!(collect_from(&[], &kernel_facts("", "", &[], "")).stable["timezone"], r#""UTC""#);
}

#[test]
fn observe_returns_same_stable_facts_twice() {
    let (first, second) = (observe(), observe());
    check_facts(&first);
    assert_eq!(first.stable, second.stable);
    assert_eq!(first.traits, second.traits);
    assert_eq!(first.findings, second.findings);
    for path in ["architecture", "cpu.count", "kernel.release", "memory.total_bytes", "virtualization"] {
        assert!(first.stable.contains_key(path), "{path}");
    }
}

#[test]
fn clean_text_truncates_and_replaces_control_characters() {
    assert_eq!(clean_text("  a\u{1b}[31m\tb\n").as_deref(), Some("a [31m b"));
    assert_eq!(clean_text(&"ä".repeat(300)).map(|text| text.chars().count()), Some(256));
    assert_eq!(clean_text("\n\0"), None);
}

/// Returns the rows of the table below a heading of docs/facts.md. Each row is a list of cells without backticks.
fn documented_rows(heading: &str) -> Vec<Vec<String>> {
    let text = include_str!("../../../docs/facts.md");
    let (_, section) = text.split_once(&format!("## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect()).collect()
}

/// Returns the name of a fact's type in docs/facts.md.
fn type_name(fact: &Fact) -> &'static str {
    match fact.fact_type {
        FactType::Address => "address",
        FactType::Addresses => "addresses",
        FactType::Number => "number",
        FactType::Boolean => "boolean",
        FactType::HostName => "host name",
        FactType::Name => "name",
        FactType::Text => "text",
    }
}

#[test]
fn documentation_lists_all_facts_and_traits() {
    let stable: Vec<_> = documented_rows("Stable facts").into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    let registry: Vec<_> = STABLE_FACTS.iter().map(|fact| (fact.path.to_owned(), type_name(fact).to_owned())).collect();
    assert_eq!(stable, registry);
    let traits: Vec<_> = documented_rows("Detected traits").into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(traits, detection::TRAITS.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>());
    // The page calls the volatile facts passing facts.
    let volatile: Vec<_> = documented_rows("Passing facts").into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(volatile, observe().volatile.into_keys().collect::<Vec<_>>());
}
