//! Detects the traits of a host: standard names for its properties, the most significant first.
//!
//! Each source may report at most fifty traits of a node ([`MAX_TRAITS`]), and a new server has more. So the table
//! below is in order of significance: first the kind of machine, then traits that few machines have and that are used
//! for placement, last what every machine of its architecture has. Traits over the limit are dropped from the end,
//! always the same ones, and a finding contains their number.

use stemma_core::traits::MAX_TRAITS;

use super::HostFacts;
use super::cpu::Cpu;
use super::disk::BlockDevice;
use super::firmware::Firmware;
use super::network::Network;

/// The properties of a host from which the agent detects its traits.
pub(super) struct DetectionInputs<'a> {
    pub(super) architecture: &'a str,
    pub(super) cpu: &'a Cpu,
    pub(super) firmware: &'a Firmware,
    pub(super) network: &'a Network,
    pub(super) disks: &'a [BlockDevice],
}

/// The condition under which a host has a trait.
#[derive(Clone, Copy, Debug)]
pub(super) enum TraitRule {
    /// The machine name of `uname` is one of these.
    Machine(&'static [&'static str]),
    /// An x86 processor with all of these flags.
    X86(&'static [&'static str]),
    /// An x86 processor of one of these vendors, with this flag.
    X86Vendor(&'static [&'static str], &'static str),
    /// A 64-bit ARM processor with this flag.
    Arm64(&'static str),
    /// The model name of the processor begins with this text.
    Model(&'static str),
    /// A core has more than one logical processor.
    Threads,
    /// The `firmware` fact has this value.
    Firmware(&'static str),
    /// Secure boot is on.
    SecureBoot,
    /// The host has a TPM of this version.
    Tpm(u64),
    /// The host has a TPM with this driver.
    TpmDriver(&'static str),
    /// The host has a network card that supports virtual functions.
    Sriov,
    /// The host has a network card that supports remote memory access (RDMA).
    Rdma,
    /// The host has a disk that rotates, or one that does not. A disk whose rotation is unknown does not match.
    Disk {
        /// True if the disk rotates.
        spins: bool,
    },
}

use TraitRule::{Arm64, Disk as DiskThat, Machine, Model, X86, X86Vendor};

const X86_MACHINES: &[&str] = &["x86_64", "i686"];
const INTEL: &[&str] = &["GenuineIntel"];
const AMD: &[&str] = &["AuthenticAMD", "HygonGenuine"];

/// The traits that the agent can detect, each with its condition, the most significant first.
pub(super) const TRAITS: &[(&str, TraitRule)] = &[
    ("HW_ARCH_X86_64", Machine(&["x86_64"])),
    ("HW_ARCH_AARCH64", Machine(&["aarch64"])),
    ("HW_ARCH_ARMV6", Machine(&["armv6l"])),
    ("HW_ARCH_ARMV7", Machine(&["armv7l"])),
    ("HW_ARCH_I686", Machine(&["i686"])),
    ("HW_ARCH_MIPS64", Machine(&["mips64"])),
    ("HW_ARCH_PPC64", Machine(&["ppc64"])),
    ("HW_ARCH_PPC64LE", Machine(&["ppc64le"])),
    ("HW_ARCH_S390X", Machine(&["s390x"])),
    ("COMPUTE_ARCH_X86_64", Machine(&["x86_64"])),
    ("COMPUTE_ARCH_AARCH64", Machine(&["aarch64"])),
    ("COMPUTE_ARCH_PPC64LE", Machine(&["ppc64le"])),
    ("COMPUTE_ARCH_RISCV64", Machine(&["riscv64"])),
    ("COMPUTE_ARCH_S390X", Machine(&["s390x"])),
    ("COMPUTE_FIRMWARE_BIOS", TraitRule::Firmware("bios")),
    ("COMPUTE_FIRMWARE_UEFI", TraitRule::Firmware("uefi")),
    ("COMPUTE_SECURITY_UEFI_SECURE_BOOT", TraitRule::SecureBoot),
    ("STORAGE_DISK_SSD", DiskThat { spins: false }),
    ("STORAGE_DISK_HDD", DiskThat { spins: true }),
    ("HW_NIC_SRIOV", TraitRule::Sriov),
    ("HW_NIC_OFFLOAD_RDMA", TraitRule::Rdma),
    ("HW_CPU_HYPERTHREADING", TraitRule::Threads),
    ("COMPUTE_SECURITY_TPM_2_0", TraitRule::Tpm(2)),
    ("COMPUTE_SECURITY_TPM_1_2", TraitRule::Tpm(1)),
    // Virtualization, the protection of virtual machines and programs, and POWER processors.
    ("HW_CPU_X86_VMX", X86(&["vmx"])),
    ("HW_CPU_X86_SVM", X86(&["svm"])),
    ("HW_CPU_X86_AMD_SEV", X86(&["sev"])),
    ("HW_CPU_X86_AMD_SEV_ES", X86(&["sev_es"])),
    ("HW_CPU_X86_AMD_SEV_SNP", X86(&["sev_snp"])),
    ("HW_CPU_X86_INTEL_TDX", X86(&["tdx_host_platform"])),
    ("HW_CPU_X86_SGX", X86(&["sgx"])),
    ("HW_CPU_PPC64LE_POWER9", Model("POWER9")),
    ("HW_CPU_PPC64LE_POWER8", Model("POWER8")),
    // Instructions that programs require: wide vectors and cryptography.
    ("HW_CPU_X86_AVX2", X86(&["avx2"])),
    ("HW_CPU_X86_AVX512F", X86(&["avx512f"])),
    ("HW_CPU_X86_AESNI", X86(&["aes"])),
    ("HW_CPU_X86_SHA", X86(&["sha_ni"])),
    ("HW_CPU_X86_AVX", X86(&["avx"])),
    ("HW_CPU_X86_SSE42", X86(&["sse4_2"])),
    ("HW_CPU_X86_SSE41", X86(&["sse4_1"])),
    ("HW_CPU_X86_SSSE3", X86(&["ssse3"])),
    ("HW_CPU_X86_AMXTILE", X86(&["amx_tile"])),
    ("HW_CPU_X86_AMXBF16", X86(&["amx_bf16"])),
    ("HW_CPU_X86_AMXINT8", X86(&["amx_int8"])),
    ("HW_CPU_X86_AVX512BW", X86(&["avx512bw"])),
    ("HW_CPU_X86_AVX512CD", X86(&["avx512cd"])),
    ("HW_CPU_X86_AVX512DQ", X86(&["avx512dq"])),
    ("HW_CPU_X86_AVX512VL", X86(&["avx512vl"])),
    ("HW_CPU_X86_AVX512VNNI", X86(&["avx512_vnni"])),
    ("HW_CPU_X86_AVX512VBMI", X86(&["avx512vbmi"])),
    ("HW_CPU_X86_AVX512VBMI2", X86(&["avx512_vbmi2"])),
    ("HW_CPU_X86_AVX512IFMA", X86(&["avx512ifma"])),
    ("HW_CPU_X86_AVX512BITALG", X86(&["avx512_bitalg"])),
    ("HW_CPU_X86_AVX512VPOPCNTDQ", X86(&["avx512_vpopcntdq"])),
    ("HW_CPU_X86_AVX512GFNI", X86(&["avx512f", "gfni"])),
    ("HW_CPU_X86_AVX512VAES", X86(&["avx512f", "vaes"])),
    ("HW_CPU_X86_AVX512VPCLMULQDQ", X86(&["avx512f", "vpclmulqdq"])),
    ("HW_CPU_X86_AVX512ER", X86(&["avx512er"])),
    ("HW_CPU_X86_AVX512PF", X86(&["avx512pf"])),
    ("HW_CPU_X86_FMA3", X86(&["fma"])),
    ("HW_CPU_X86_BMI", X86(&["bmi1"])),
    ("HW_CPU_X86_BMI2", X86(&["bmi2"])),
    ("HW_CPU_X86_F16C", X86(&["f16c"])),
    ("HW_CPU_X86_CLMUL", X86(&["pclmulqdq"])),
    ("HW_CPU_X86_PDPE1GB", X86(&["pdpe1gb"])),
    ("HW_CPU_X86_TSX", X86(&["rtm"])),
    // Mitigations of processor vulnerabilities.
    ("HW_CPU_X86_INTEL_SPEC_CTRL", X86Vendor(INTEL, "ibrs")),
    ("HW_CPU_X86_INTEL_SSBD", X86Vendor(INTEL, "ssbd")),
    ("HW_CPU_X86_INTEL_MD_CLEAR", X86Vendor(INTEL, "md_clear")),
    ("HW_CPU_X86_INTEL_PCID", X86Vendor(INTEL, "pcid")),
    ("HW_CPU_X86_AMD_IBPB", X86Vendor(AMD, "ibpb")),
    ("HW_CPU_X86_AMD_SSBD", X86Vendor(AMD, "ssbd")),
    ("HW_CPU_X86_AMD_VIRT_SSBD", X86Vendor(AMD, "virt_ssbd")),
    ("HW_CPU_X86_STIBP", X86(&["stibp"])),
    // All traits of 64-bit ARM, which are fewer than the limit.
    ("HW_CPU_AARCH64_SVE", Arm64("sve")),
    ("HW_CPU_AARCH64_AES", Arm64("aes")),
    ("HW_CPU_AARCH64_PMULL", Arm64("pmull")),
    ("HW_CPU_AARCH64_SHA1", Arm64("sha1")),
    ("HW_CPU_AARCH64_SHA2", Arm64("sha2")),
    ("HW_CPU_AARCH64_SHA3", Arm64("sha3")),
    ("HW_CPU_AARCH64_SHA512", Arm64("sha512")),
    ("HW_CPU_AARCH64_SM3", Arm64("sm3")),
    ("HW_CPU_AARCH64_SM4", Arm64("sm4")),
    ("HW_CPU_AARCH64_ATOMICS", Arm64("atomics")),
    ("HW_CPU_AARCH64_CRC32", Arm64("crc32")),
    ("HW_CPU_AARCH64_ASIMDDP", Arm64("asimddp")),
    ("HW_CPU_AARCH64_ASIMDHP", Arm64("asimdhp")),
    ("HW_CPU_AARCH64_ASIMDRDM", Arm64("asimdrdm")),
    ("HW_CPU_AARCH64_FPHP", Arm64("fphp")),
    ("HW_CPU_AARCH64_FCMA", Arm64("fcma")),
    ("HW_CPU_AARCH64_JSCVT", Arm64("jscvt")),
    ("HW_CPU_AARCH64_LRCPC", Arm64("lrcpc")),
    ("HW_CPU_AARCH64_DCPOP", Arm64("dcpop")),
    ("HW_CPU_AARCH64_ASIMD", Arm64("asimd")),
    ("HW_CPU_AARCH64_FP", Arm64("fp")),
    ("HW_CPU_AARCH64_CPUID", Arm64("cpuid")),
    ("HW_CPU_AARCH64_EVTSTRM", Arm64("evtstrm")),
    // Flags that only old or few processors have, and flags that all processors have.
    ("HW_CPU_X86_ABM", X86(&["abm"])),
    ("HW_CPU_X86_SSE4A", X86(&["sse4a"])),
    ("HW_CPU_X86_FMA4", X86(&["fma4"])),
    ("HW_CPU_X86_XOP", X86(&["xop"])),
    ("HW_CPU_X86_TBM", X86(&["tbm"])),
    ("HW_CPU_X86_MPX", X86(&["mpx"])),
    ("HW_CPU_X86_3DNOW", X86(&["3dnow"])),
    ("HW_CPU_X86_SSE3", X86(&["pni"])),
    ("HW_CPU_X86_SSE2", X86(&["sse2"])),
    ("HW_CPU_X86_SSE", X86(&["sse"])),
    ("HW_CPU_X86_MMX", X86(&["mmx"])),
    // Second standard names of traits that are listed above, and the driver of a TPM.
    ("HW_CPU_X86_INTEL_VMX", X86Vendor(INTEL, "vmx")),
    ("HW_CPU_X86_AMD_SVM", X86Vendor(AMD, "svm")),
    ("COMPUTE_SECURITY_TPM_CRB", TraitRule::TpmDriver("tpm_crb")),
    ("COMPUTE_SECURITY_TPM_TIS", TraitRule::TpmDriver("tpm_tis")),
];

/// Detects the traits of the host, and adds at most [`MAX_TRAITS`] of them to the facts, sorted by name. If more are
/// detected, omits the least significant, and adds a finding with their number.
pub(super) fn add_traits(host: &DetectionInputs<'_>, facts: &mut HostFacts) {
    let mut names: Vec<&str> = TRAITS.iter().filter(|(_, rule)| host.matches(*rule)).map(|(name, _)| *name).collect();
    facts.add_limit_finding("traits", names.len().saturating_sub(MAX_TRAITS), MAX_TRAITS);
    names.truncate(MAX_TRAITS);
    names.sort_unstable();
    facts.traits = names.into_iter().map(str::to_owned).collect();
}

impl DetectionInputs<'_> {
    /// Returns whether the host meets the condition of a trait.
    fn matches(&self, rule: TraitRule) -> bool {
        let flags = &self.cpu.flags;
        let is_x86 = X86_MACHINES.contains(&self.architecture);
        match rule {
            Machine(names) => names.contains(&self.architecture),
            X86(required_flags) => is_x86 && required_flags.iter().all(|flag| flags.contains(*flag)),
            X86Vendor(vendors, flag) => is_x86 && self.has_vendor(vendors) && flags.contains(flag),
            Arm64(flag) => self.architecture == "aarch64" && flags.contains(flag),
            Model(prefix) => self.cpu.model.as_deref().is_some_and(|model| model.starts_with(prefix)),
            TraitRule::Threads => self.cpu.has_threads,
            TraitRule::Firmware(kind) => self.firmware.kind == Some(kind),
            TraitRule::SecureBoot => self.firmware.has_secure_boot,
            TraitRule::Tpm(version) => self.firmware.tpm_version == Some(version),
            TraitRule::TpmDriver(driver) => self.firmware.tpm_driver.as_deref() == Some(driver),
            TraitRule::Sriov => self.network.has_sriov(),
            TraitRule::Rdma => self.network.has_rdma(),
            // `DiskThat` is the local name of `TraitRule::Disk`.
            DiskThat { spins } => self.disks.iter().any(|disk| disk.rotational() == Some(spins)),
        }
    }

    fn has_vendor(&self, vendors: &[&str]) -> bool {
        self.cpu.vendor.as_deref().is_some_and(|vendor| vendors.contains(&vendor))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use stemma_core::traits::standard_names;

    use super::*;

    /// Returns the facts of a host with this machine name, and with this vendor and these flags of its processor.
    fn detect(architecture: &str, vendor: &str, flags: &str) -> HostFacts {
        let cpu = Cpu { vendor: Some(vendor.to_owned()), flags: flags.split(' ').map(str::to_owned).collect(), ..Cpu::default() };
        let (firmware, network) = (Firmware::default(), Network::default());
        let mut facts = HostFacts::default();
        add_traits(&DetectionInputs { architecture, cpu: &cpu, firmware: &firmware, network: &network, disks: &[] }, &mut facts);
        facts
    }

    /// The standard names are those of the Python package `os-traits`.
    #[test]
    fn trait_names_are_standard_and_unique() {
        let names: BTreeSet<&str> = TRAITS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), TRAITS.len());
        for name in names {
            assert!(standard_names().contains(&name), "{name}");
        }
    }

    /// Each case contains the machine name, vendor and flags of a processor, and the expected traits. For example, the
    /// flag `aes` gives one trait on x86, another trait on 64-bit ARM, and no trait on RISC-V.
    #[test]
    fn cpu_flags_match_only_on_same_architecture_and_vendor() {
        for (architecture, vendor, flags, expected) in [
            ("x86_64", "GenuineIntel", "aes pcid", "COMPUTE_ARCH_X86_64 HW_ARCH_X86_64 HW_CPU_X86_AESNI HW_CPU_X86_INTEL_PCID"),
            ("x86_64", "AuthenticAMD", "aes pcid", "COMPUTE_ARCH_X86_64 HW_ARCH_X86_64 HW_CPU_X86_AESNI"),
            ("x86_64", "AuthenticAMD", "ssbd", "COMPUTE_ARCH_X86_64 HW_ARCH_X86_64 HW_CPU_X86_AMD_SSBD"),
            ("x86_64", "Other", "gfni pni", "COMPUTE_ARCH_X86_64 HW_ARCH_X86_64 HW_CPU_X86_SSE3"),
            ("aarch64", "ARM", "aes vmx", "COMPUTE_ARCH_AARCH64 HW_ARCH_AARCH64 HW_CPU_AARCH64_AES"),
            ("riscv64", "", "aes", "COMPUTE_ARCH_RISCV64"),
            ("s390x", "IBM/S390", "", "COMPUTE_ARCH_S390X HW_ARCH_S390X"),
            ("pdp11", "", "aes", ""),
        ] {
            assert_eq!(detect(architecture, vendor, flags).traits.join(" "), expected, "{architecture} {flags}");
        }
    }

    /// Detects the traits of an Intel processor that has every x86 flag of the rules. These are more than 50 traits. So
    /// the last ones in the order of the rules, such as `HW_CPU_X86_MMX`, are omitted.
    #[test]
    fn add_traits_drops_last_when_over_limit() {
        let flag_lists = TRAITS.iter().filter_map(|(_, rule)| match rule {
            X86(flags) => Some(flags.join(" ")),
            X86Vendor(_, flag) => Some((*flag).to_owned()),
            _ => None,
        });
        let flags = flag_lists.collect::<Vec<_>>().join(" ");
        let facts = detect("x86_64", "GenuineIntel", &flags);
        assert_eq!(facts.traits.len(), 50);
        assert!(facts.traits.is_sorted());
        assert!(facts.traits.iter().any(|name| name == "HW_CPU_X86_AVX512VNNI"));
        assert!(!facts.traits.iter().any(|name| name == "HW_CPU_X86_MMX"));
        // In this test, all x86 traits are detected except those whose rules require a processor of AMD. The rules of
        // the three AMD traits below do not check the vendor.
        let matching_traits = TRAITS.iter().filter(|(name, _)| {
            name.ends_with("_X86_64") || name.starts_with("HW_CPU_X86_") && !name.starts_with("HW_CPU_X86_AMD_")
        });
        let amd_trait_count = ["HW_CPU_X86_AMD_SEV", "HW_CPU_X86_AMD_SEV_ES", "HW_CPU_X86_AMD_SEV_SNP"].len();
        let omitted_count = matching_traits.count() + amd_trait_count - 50;
        assert_eq!(
            facts.findings,
            [format!("{omitted_count} traits are omitted from the facts: at most 50 are reported, the most significant first")]
        );
    }
}
