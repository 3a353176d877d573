//! What this host is virtualised by, in the words and the order of `systemd-detect-virt`: a container first, since
//! it is nearer than the machine that it runs on.
//!
//! Without root the environment of process 1 is not readable; what managers of containers leave in files is.

use super::cpu::Cpu;
use super::dmi::Dmi;
use super::source::{Root, value};
use super::{Seen, clean};

/// Where managers of containers leave their mark, and what each stands for.
const MARKS: &[(&str, &str)] = &[("/run/.containerenv", "podman"), ("/.dockerenv", "docker")];
/// Containers that systemd names.
const CONTAINERS: &[&str] =
    &["docker", "lxc", "lxc-libvirt", "openvz", "podman", "pouch", "proot", "rkt", "systemd-nspawn", "wsl"];
/// What a hypervisor says by the CPUID instruction (leaf 0x40000000).
const SIGNATURES: &[(&[u8; 12], &str)] = &[
    (b"KVMKVMKVM\0\0\0", "kvm"),
    (b"Linux KVM Hv", "kvm"),
    (b"XenVMMXenVMM", "xen"),
    (b"TCGTCGTCGTCG", "qemu"),
    (b"VMwareVMware", "vmware"),
    (b"Microsoft Hv", "microsoft"),
    (b"bhyve bhyve ", "bhyve"),
    (b"QNXQVMBSQG\0\0", "qnx"),
    (b"ACRNACRNACRN", "acrn"),
    (b"SRESRESRESRE", "sre"),
    (b"Apple VZ\0\0\0\0", "apple"),
    (b"VBoxVBoxVBox", "oracle"),
    (b" lrpepyh  vr", "parallels"),
];
/// What DMI's words begin with.
const MACHINES: &[(&str, &str)] = &[
    ("KVM", "kvm"),
    ("OpenStack", "kvm"),
    ("KubeVirt", "kvm"),
    ("Amazon EC2", "amazon"),
    ("QEMU", "qemu"),
    ("VMware", "vmware"),
    ("VMW", "vmware"),
    ("innotek GmbH", "oracle"),
    ("VirtualBox", "oracle"),
    ("Oracle Corporation", "oracle"),
    ("Xen", "xen"),
    ("Bochs", "bochs"),
    ("Parallels", "parallels"),
    ("BHYVE", "bhyve"),
    ("Hyper-V", "microsoft"),
    ("Apple Virtualization", "apple"),
    ("Google Compute Engine", "google"),
];

/// What this host runs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Virtualization {
    /// The machine itself.
    None,
    /// A virtual machine, by its name.
    Machine(&'static str),
    /// A container, by its name.
    Container(&'static str),
}

/// What tells a virtual machine.
#[derive(Clone, Debug, Default)]
struct Clues<'a> {
    architecture: &'a str,
    cpuinfo: &'a str,
    has_hypervisor_flag: bool,
    signature: Option<[u8; 12]>,
    dmi: Dmi,
    /// `/sys/hypervisor/type` and `/proc/xen/capabilities`.
    hypervisor: Option<String>,
    xen_capabilities: Option<String>,
    /// `/proc/device-tree/hypervisor/compatible`.
    tree_hypervisor: Option<String>,
    has_tree_of_qemu: bool,
    /// `/proc/sysinfo` of s390x.
    sysinfo: Option<String>,
}

/// What the hypervisor says by CPUID; zeros on other processors than x86. Ask only if the processor has the flag
/// `hypervisor`: without it, the leaf is not defined.
pub(super) fn signature() -> [u8; 12] {
    let mut name = [0; 12];
    #[cfg(target_arch = "x86_64")]
    {
        let said = std::arch::x86_64::__cpuid(0x4000_0000);
        for (four, register) in name.chunks_exact_mut(4).zip([said.ebx, said.ecx, said.edx]) {
            four.copy_from_slice(&register.to_le_bytes());
        }
    }
    name
}

/// Reads the marks. `signature` comes from this module's function of that name.
pub(super) fn read(
    root: &Root,
    architecture: &str,
    cpu: &Cpu,
    dmi: &Dmi,
    signature: fn() -> [u8; 12],
) -> Virtualization {
    if let Some(name) = container(root) {
        return Virtualization::Container(name);
    }
    let has_hypervisor_flag = cpu.flags.contains("hypervisor");
    machine(&Clues {
        architecture,
        cpuinfo: &root.text("/proc/cpuinfo").unwrap_or_default(),
        has_hypervisor_flag,
        signature: has_hypervisor_flag.then(signature),
        dmi: dmi.clone(),
        hypervisor: root.line("/sys/hypervisor/type"),
        xen_capabilities: root.text("/proc/xen/capabilities"),
        tree_hypervisor: root.line("/proc/device-tree/hypervisor/compatible"),
        has_tree_of_qemu: root.names("/proc/device-tree").iter().any(|name| name.contains("fw-cfg")),
        sysinfo: root.text("/proc/sysinfo"),
    })
    .map_or(Virtualization::None, Virtualization::Machine)
}

impl Virtualization {
    /// Writes the fact down.
    pub(super) fn say(&self, seen: &mut Seen) {
        seen.name("virtualization", Some(self.as_str()));
    }

    /// As `systemd-detect-virt` prints it.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Machine(name) | Self::Container(name) => name,
        }
    }
}

fn container(root: &Root) -> Option<&'static str> {
    if root.has("/proc/vz") && !root.has("/proc/bc") {
        return Some("openvz");
    }
    let release = root.line("/proc/sys/kernel/osrelease").unwrap_or_default();
    if release.contains("Microsoft") || release.contains("WSL") {
        return Some("wsl");
    }
    let said = root.line("/run/host/container-manager").or_else(|| root.line("/run/systemd/container"));
    let said = said.or_else(|| environment(&root.text("/proc/1/environ")?));
    match said.as_deref() {
        Some("oci") | None => marked(root).or(said.map(|_| "container-other")),
        Some(name) => Some(CONTAINERS.iter().find(|known| **known == name).copied().unwrap_or("container-other")),
    }
}

fn marked(root: &Root) -> Option<&'static str> {
    MARKS.iter().find(|(mark, _)| root.has(mark)).map(|(_, name)| *name)
}

/// `container=` of the environment of process 1.
fn environment(text: &str) -> Option<String> {
    clean(text.split('\0').find_map(|one| one.strip_prefix("container="))?)
}

fn machine(clues: &Clues<'_>) -> Option<&'static str> {
    if value(clues.cpuinfo, "vendor_id") == Some("User Mode Linux") {
        return Some("uml");
    }
    let is_first_domain = clues.xen_capabilities.as_deref().is_some_and(|text| text.contains("control_d"));
    if is_first_domain {
        return None;
    }
    let is_x86 = matches!(clues.architecture, "x86_64" | "i686");
    if is_x86 && !clues.has_hypervisor_flag && clues.hypervisor.is_none() {
        return None;
    }
    let (by_dmi, by_cpu) = (by_words(&clues.dmi), clues.signature.and_then(|said| by_signature(&said)));
    // QEMU's tables say QEMU also where KVM runs the machine; and KVM runs Amazon's and Google's, which DMI tells apart.
    let told = by_dmi.filter(|name| *name != "qemu").or(by_cpu).or(by_dmi);
    if told.is_some() {
        return told;
    }
    if clues.hypervisor.as_deref() == Some("xen") {
        return Some("xen");
    }
    by_tree(clues)
        .or_else(|| clues.sysinfo.as_deref().and_then(by_sysinfo))
        .or(clues.has_hypervisor_flag.then_some("vm-other"))
}

fn by_signature(said: &[u8; 12]) -> Option<&'static str> {
    SIGNATURES.iter().find(|(signature, _)| *signature == said).map(|(_, name)| *name)
}

fn by_words(dmi: &Dmi) -> Option<&'static str> {
    let product = dmi.product.as_deref().unwrap_or_default();
    // Amazon's whole machines have its name on them as well.
    let is_metal = product.contains(".metal");
    let words = [Some(product), dmi.vendor.as_deref(), dmi.board.as_deref(), dmi.bios_vendor.as_deref()];
    let told = |word: &str| {
        // Microsoft and Oracle make machines, too: only what they name by a product counts.
        let is_hyper_v = dmi.vendor.as_deref() == Some("Microsoft Corporation") && word == "Virtual Machine";
        let found = MACHINES.iter().find(|(start, _)| word.starts_with(start)).map(|(_, name)| *name);
        if is_hyper_v { Some("microsoft") } else { found.filter(|name| *name != "amazon" || !is_metal) }
    };
    words.into_iter().flatten().find_map(told)
}

/// The device tree of ARM, POWER and RISC-V.
fn by_tree(clues: &Clues<'_>) -> Option<&'static str> {
    match clues.tree_hypervisor.as_deref() {
        Some("linux,kvm") => Some("kvm"),
        Some(text) if text.contains("xen") => Some("xen"),
        Some(text) if text.contains("vmware") => Some("vmware"),
        Some(_) => Some("vm-other"),
        None => clues.has_tree_of_qemu.then_some("qemu"),
    }
}

fn by_sysinfo(text: &str) -> Option<&'static str> {
    let program = text.lines().find(|line| line.starts_with("VM00 Control Program"))?;
    Some(if program.contains("z/VM") { "zvm" } else { "kvm" })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn dmi(vendor: &str, product: &str) -> Dmi {
        Dmi { vendor: Some(vendor.to_owned()), product: Some(product.to_owned()), ..Dmi::default() }
    }

    #[test]
    fn machines_of_many_kinds() {
        let pc = Clues { architecture: "x86_64", ..Clues::default() };
        let guest = Clues { has_hypervisor_flag: true, ..pc.clone() };
        let arm = Clues { architecture: "aarch64", ..Clues::default() };
        let signed = |name: &[u8; 12]| Clues { signature: Some(*name), ..guest.clone() };
        let some = |text: &str| Some(text.to_owned());
        for (clues, expected) in [
            (Clues { dmi: dmi("Dell Inc.", "PowerEdge R750"), ..pc.clone() }, None),
            (Clues { dmi: dmi("Amazon EC2", "m5.metal"), ..pc.clone() }, None),
            (Clues { dmi: dmi("Amazon EC2", "m7g.metal"), ..arm.clone() }, None),
            (Clues { dmi: dmi("Amazon EC2", "m7g.large"), ..arm.clone() }, Some("amazon")),
            (Clues { dmi: dmi("Amazon EC2", "m5.large"), ..signed(b"KVMKVMKVM\0\0\0") }, Some("amazon")),
            (Clues { dmi: dmi("QEMU", "Standard PC"), ..signed(b"KVMKVMKVM\0\0\0") }, Some("kvm")),
            (Clues { dmi: dmi("QEMU", "Standard PC"), ..signed(b"TCGTCGTCGTCG") }, Some("qemu")),
            (Clues { dmi: dmi("QEMU", "QEMU Virtual Machine"), ..arm.clone() }, Some("qemu")),
            (signed(b"KVMKVMKVM\0\0\0"), Some("kvm")),
            (signed(b"something new"[..12].try_into().unwrap()), Some("vm-other")),
            (guest.clone(), Some("vm-other")),
            (Clues { dmi: dmi("Microsoft Corporation", "Virtual Machine"), ..guest.clone() }, Some("microsoft")),
            (Clues { dmi: dmi("Microsoft Corporation", "Surface Pro"), ..pc.clone() }, None),
            (Clues { dmi: dmi("innotek GmbH", "VirtualBox"), ..guest.clone() }, Some("oracle")),
            (Clues { dmi: dmi("Google", "Google Compute Engine"), ..guest.clone() }, Some("google")),
            (Clues { hypervisor: some("xen"), ..pc.clone() }, Some("xen")),
            (Clues { hypervisor: some("xen"), xen_capabilities: some("control_d\n"), ..pc.clone() }, None),
            (Clues { cpuinfo: "vendor_id\t: User Mode Linux\n", ..pc.clone() }, Some("uml")),
            (Clues { tree_hypervisor: some("linux,kvm"), ..arm.clone() }, Some("kvm")),
            (Clues { has_tree_of_qemu: true, ..arm.clone() }, Some("qemu")),
            (Clues { sysinfo: some("VM00 Control Program: z/VM    7.2.0\n"), ..Clues::default() }, Some("zvm")),
            (Clues { sysinfo: some("VM00 Control Program: KVM/Linux\n"), ..Clues::default() }, Some("kvm")),
            (arm, None),
        ] {
            assert_eq!(machine(&clues), expected, "{clues:?}");
        }
    }

    #[test]
    fn containers_leave_marks() {
        for (path, content, expected) in [
            ("run/systemd/container", "systemd-nspawn\n", Some("systemd-nspawn")),
            ("run/systemd/container", "something\n", Some("container-other")),
            ("run/systemd/container", "oci\n", Some("container-other")),
            ("run/host/container-manager", "lxc\n", Some("lxc")),
            ("proc/1/environ", "PATH=/bin\0container=lxc\0", Some("lxc")),
            ("proc/1/environ", "PATH=/bin\0", None),
            ("run/.containerenv", "", Some("podman")),
            (".dockerenv", "", Some("docker")),
            ("proc/vz/version", "", Some("openvz")),
            ("proc/sys/kernel/osrelease", "5.15.90.1-microsoft-standard-WSL2\n", Some("wsl")),
            ("etc/hostname", "x\n", None),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
            assert_eq!(container(&Root::new(dir.path())), expected, "{path} {content}");
        }
    }
}
