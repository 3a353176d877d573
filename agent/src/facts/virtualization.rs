//! Detects the virtualization of this host, with the names and the order of `systemd-detect-virt`: containers first,
//! because a container is nearer than the machine that it runs on.
//!
//! Without root, the environment of process 1 is not readable. The files that container managers create are readable.

use super::cpu::Cpu;
use super::dmi::Dmi;
use super::source::{HostRoot, table_value};
use super::{HostFacts, clean_text};

/// Files that container managers create in their containers, each with the name of the manager.
const CONTAINER_MARKS: &[(&str, &str)] = &[("/run/.containerenv", "podman"), ("/.dockerenv", "docker")];
/// The names of container managers that `systemd-detect-virt` prints.
const CONTAINER_NAMES: &[&str] =
    &["docker", "lxc", "lxc-libvirt", "openvz", "podman", "pouch", "proot", "rkt", "systemd-nspawn", "wsl"];
/// Signatures that hypervisors return for the CPUID instruction (leaf 0x40000000), each with the name of the
/// hypervisor.
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
/// Prefixes of DMI values (of the firmware), each with the name of the hypervisor whose machines have such values.
const DMI_MACHINES: &[(&str, &str)] = &[
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

/// The virtual machine or container that this host is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Virtualization {
    /// The host is bare metal.
    None,
    /// The host is a virtual machine. The value is the name of the hypervisor.
    Machine(&'static str),
    /// The host is a container. The value is the name of the container manager.
    Container(&'static str),
}

/// The values from which the agent detects a virtual machine.
#[derive(Clone, Debug, Default)]
struct MachineClues<'a> {
    architecture: &'a str,
    /// The content of `/proc/cpuinfo`.
    cpuinfo: &'a str,
    /// True if the processor has the flag `hypervisor`.
    has_hypervisor_flag: bool,
    /// The signature that the hypervisor returns for the CPUID instruction.
    signature: Option<[u8; 12]>,
    dmi: Dmi,
    /// The content of `/sys/hypervisor/type`.
    hypervisor: Option<String>,
    /// The content of `/proc/xen/capabilities`.
    xen_capabilities: Option<String>,
    /// The content of `/proc/device-tree/hypervisor/compatible`.
    device_tree_hypervisor: Option<String>,
    /// True if the device tree contains a device that only QEMU has.
    has_qemu_device_tree: bool,
    /// The content of `/proc/sysinfo` of s390x.
    sysinfo: Option<String>,
}

/// Returns the signature that the hypervisor returns for the CPUID instruction, or zeros if the processor is not 64-bit
/// x86. The caller checks first that the processor has the flag `hypervisor`, because the result is undefined
/// otherwise.
pub(super) fn read_signature() -> [u8; 12] {
    let mut signature = [0; 12];
    #[cfg(target_arch = "x86_64")]
    {
        let leaf = std::arch::x86_64::__cpuid(0x4000_0000);
        for (part, register) in signature.chunks_exact_mut(4).zip([leaf.ebx, leaf.ecx, leaf.edx]) {
            part.copy_from_slice(&register.to_le_bytes());
        }
    }
    signature
}

/// Detects the virtualization of the host from its files. `signature` is the function [`read_signature`], except in
/// tests.
pub(super) fn read(root: &HostRoot, architecture: &str, cpu: &Cpu, dmi: &Dmi, signature: fn() -> [u8; 12]) -> Virtualization {
    if let Some(name) = detect_container(root) {
        return Virtualization::Container(name);
    }
    let has_hypervisor_flag = cpu.flags.contains("hypervisor");
    detect_machine(&MachineClues {
        architecture,
        cpuinfo: &root.text("/proc/cpuinfo").unwrap_or_default(),
        has_hypervisor_flag,
        signature: has_hypervisor_flag.then(signature),
        dmi: dmi.clone(),
        hypervisor: root.line("/sys/hypervisor/type"),
        xen_capabilities: root.text("/proc/xen/capabilities"),
        device_tree_hypervisor: root.line("/proc/device-tree/hypervisor/compatible"),
        has_qemu_device_tree: root.names("/proc/device-tree").iter().any(|name| name.contains("fw-cfg")),
        sysinfo: root.text("/proc/sysinfo"),
    })
    .map_or(Virtualization::None, Virtualization::Machine)
}

impl Virtualization {
    /// Adds the fact `virtualization`.
    pub(super) fn add_facts(&self, facts: &mut HostFacts) {
        facts.add_name("virtualization", Some(self.as_str()));
    }

    /// Returns the name that `systemd-detect-virt` prints.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Machine(name) | Self::Container(name) => name,
        }
    }
}

/// Returns the name of the container manager if this host is a container, or else `None`. The name is `container-other`
/// for an unknown manager.
///
/// If the host names no manager, or only the format `oci`, the files of [`CONTAINER_MARKS`] decide.
fn detect_container(root: &HostRoot) -> Option<&'static str> {
    // A host of OpenVZ has both directories, and its containers have only `/proc/vz`.
    if root.exists("/proc/vz") && !root.exists("/proc/bc") {
        return Some("openvz");
    }
    let release = root.line("/proc/sys/kernel/osrelease").unwrap_or_default();
    // The Windows Subsystem for Linux counts as a container, as for `systemd-detect-virt`.
    if release.contains("Microsoft") || release.contains("WSL") {
        return Some("wsl");
    }
    let manager = root.line("/run/host/container-manager").or_else(|| root.line("/run/systemd/container"));
    let manager = manager.or_else(|| container_variable(&root.text("/proc/1/environ")?));
    match manager.as_deref() {
        Some("oci") | None => container_by_mark(root).or(manager.map(|_| "container-other")),
        Some(name) => Some(CONTAINER_NAMES.iter().find(|entry| **entry == name).copied().unwrap_or("container-other")),
    }
}

/// Returns the name of the container manager whose file exists on this host ([`CONTAINER_MARKS`]).
fn container_by_mark(root: &HostRoot) -> Option<&'static str> {
    CONTAINER_MARKS.iter().find(|(mark, _)| root.exists(mark)).map(|(_, name)| *name)
}

/// Returns the value of the variable `container` in the environment of process 1. `text` is the content of
/// `/proc/1/environ`.
fn container_variable(text: &str) -> Option<String> {
    clean_text(text.split('\0').find_map(|variable| variable.strip_prefix("container="))?)
}

/// Returns the name of the hypervisor if this host is a virtual machine, or `None` if it is bare metal. The name is
/// `vm-other` for an unknown hypervisor. The first domain of Xen, which controls the machine, is bare metal.
fn detect_machine(clues: &MachineClues<'_>) -> Option<&'static str> {
    if table_value(clues.cpuinfo, "vendor_id") == Some("User Mode Linux") {
        return Some("uml");
    }
    let is_first_domain = clues.xen_capabilities.as_deref().is_some_and(|text| text.contains("control_d"));
    if is_first_domain {
        return None;
    }
    let is_x86 = matches!(clues.architecture, "x86_64" | "i686");
    // An x86 machine without the flag `hypervisor` is bare metal, unless `/sys/hypervisor/type` exists (Xen).
    if is_x86 && !clues.has_hypervisor_flag && clues.hypervisor.is_none() {
        return None;
    }
    let (by_dmi, by_cpu) = (by_dmi_text(&clues.dmi), clues.signature.and_then(|id| by_signature(&id)));
    // The DMI tables of QEMU contain the name QEMU even if KVM runs the machine, so the processor's signature comes
    // before them. KVM also runs Amazon's and Google's machines. Only DMI shows this, so other DMI names come first.
    let detected = by_dmi.filter(|name| *name != "qemu").or(by_cpu).or(by_dmi);
    if detected.is_some() {
        return detected;
    }
    if clues.hypervisor.as_deref() == Some("xen") {
        return Some("xen");
    }
    by_device_tree(clues)
        .or_else(|| clues.sysinfo.as_deref().and_then(by_sysinfo))
        .or(clues.has_hypervisor_flag.then_some("vm-other"))
}

/// Returns the name of the hypervisor with this signature of the CPUID instruction.
fn by_signature(id: &[u8; 12]) -> Option<&'static str> {
    SIGNATURES.iter().find(|(signature, _)| *signature == id).map(|(_, name)| *name)
}

/// Returns the name of the hypervisor whose prefix a DMI value has ([`DMI_MACHINES`]).
fn by_dmi_text(dmi: &Dmi) -> Option<&'static str> {
    let product = dmi.product.as_deref().unwrap_or_default();
    // The DMI values of Amazon's bare-metal machines contain the name Amazon too. Their product name contains `.metal`.
    let is_metal = product.contains(".metal");
    let values = [Some(product), dmi.vendor.as_deref(), dmi.board.as_deref(), dmi.bios_vendor.as_deref()];
    let detect = |value: &str| {
        // Microsoft also builds physical machines, so its vendor name alone does not identify a virtual machine.
        let is_hyper_v = dmi.vendor.as_deref() == Some("Microsoft Corporation") && value == "Virtual Machine";
        let hypervisor = DMI_MACHINES.iter().find(|(prefix, _)| value.starts_with(prefix)).map(|(_, name)| *name);
        if is_hyper_v { Some("microsoft") } else { hypervisor.filter(|name| *name != "amazon" || !is_metal) }
    };
    values.into_iter().flatten().find_map(detect)
}

/// Returns the name of the hypervisor according to the device tree, which machines with ARM, POWER and RISC-V have.
fn by_device_tree(clues: &MachineClues<'_>) -> Option<&'static str> {
    match clues.device_tree_hypervisor.as_deref() {
        Some("linux,kvm") => Some("kvm"),
        Some(text) if text.contains("xen") => Some("xen"),
        Some(text) if text.contains("vmware") => Some("vmware"),
        Some(_) => Some("vm-other"),
        None => clues.has_qemu_device_tree.then_some("qemu"),
    }
}

/// Returns the name of the hypervisor of an s390x machine. `text` is the content of `/proc/sysinfo`.
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

    /// Each case contains the values that a machine reports, and the name of its hypervisor, or `None` for bare metal.
    /// `signed` returns the values of a virtual machine whose processor reports this signature.
    #[test]
    fn detect_machine_recognizes_hypervisors() {
        let pc = MachineClues { architecture: "x86_64", ..MachineClues::default() };
        let guest = MachineClues { has_hypervisor_flag: true, ..pc.clone() };
        let arm = MachineClues { architecture: "aarch64", ..MachineClues::default() };
        let signed = |name: &[u8; 12]| MachineClues { signature: Some(*name), ..guest.clone() };
        let some = |text: &str| Some(text.to_owned());
        for (clues, expected) in [
            (MachineClues { dmi: dmi("Dell Inc.", "PowerEdge R750"), ..pc.clone() }, None),
            (MachineClues { dmi: dmi("Amazon EC2", "m5.metal"), ..pc.clone() }, None),
            (MachineClues { dmi: dmi("Amazon EC2", "m7g.metal"), ..arm.clone() }, None),
            (MachineClues { dmi: dmi("Amazon EC2", "m7g.large"), ..arm.clone() }, Some("amazon")),
            (MachineClues { dmi: dmi("Amazon EC2", "m5.large"), ..signed(b"KVMKVMKVM\0\0\0") }, Some("amazon")),
            (MachineClues { dmi: dmi("QEMU", "Standard PC"), ..signed(b"KVMKVMKVM\0\0\0") }, Some("kvm")),
            (MachineClues { dmi: dmi("QEMU", "Standard PC"), ..signed(b"TCGTCGTCGTCG") }, Some("qemu")),
            (MachineClues { dmi: dmi("QEMU", "QEMU Virtual Machine"), ..arm.clone() }, Some("qemu")),
            (signed(b"KVMKVMKVM\0\0\0"), Some("kvm")),
            (signed(b"something new"[..12].try_into().unwrap()), Some("vm-other")),
            (guest.clone(), Some("vm-other")),
            (MachineClues { dmi: dmi("Microsoft Corporation", "Virtual Machine"), ..guest.clone() }, Some("microsoft")),
            (MachineClues { dmi: dmi("Microsoft Corporation", "Surface Pro"), ..pc.clone() }, None),
            (MachineClues { dmi: dmi("innotek GmbH", "VirtualBox"), ..guest.clone() }, Some("oracle")),
            (MachineClues { dmi: dmi("Google", "Google Compute Engine"), ..guest.clone() }, Some("google")),
            (MachineClues { hypervisor: some("xen"), ..pc.clone() }, Some("xen")),
            (MachineClues { hypervisor: some("xen"), xen_capabilities: some("control_d\n"), ..pc.clone() }, None),
            (MachineClues { cpuinfo: "vendor_id\t: User Mode Linux\n", ..pc.clone() }, Some("uml")),
            (MachineClues { device_tree_hypervisor: some("linux,kvm"), ..arm.clone() }, Some("kvm")),
            (MachineClues { has_qemu_device_tree: true, ..arm.clone() }, Some("qemu")),
            (MachineClues { sysinfo: some("VM00 Control Program: z/VM    7.2.0\n"), ..MachineClues::default() }, Some("zvm")),
            (MachineClues { sysinfo: some("VM00 Control Program: KVM/Linux\n"), ..MachineClues::default() }, Some("kvm")),
            (arm, None),
        ] {
            assert_eq!(detect_machine(&clues), expected, "{clues:?}");
        }
    }

    /// Each case contains a file of the host with its content, and the name of the container manager, or `None` if the
    /// host is not a container.
    #[test]
    fn detect_container_recognizes_managers() {
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
            assert_eq!(detect_container(&HostRoot::new(dir.path())), expected, "{path} {content}");
        }
    }
}
