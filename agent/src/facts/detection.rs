//! Which traits a host has: standard names for what was found, the most telling first.
//!
//! Each source may give a node fifty ([`MAX_TRAITS`]), and a new server has more. So the table below is an order:
//! first what kind of machine it is, then what few machines have and people place work by, last what every machine
//! of its architecture has. What does not fit is left out from the end, the same on each run, and a finding says
//! how many.

use stemma_core::traits::MAX_TRAITS;

use super::Seen;
use super::cpu::Cpu;
use super::disk::Disk;
use super::firmware::Firmware;
use super::network::Network;

/// What a host was found to be.
pub(super) struct Detected<'a> {
    pub(super) architecture: &'a str,
    pub(super) cpu: &'a Cpu,
    pub(super) firmware: &'a Firmware,
    pub(super) network: &'a Network,
    pub(super) disks: &'a [Disk],
}

/// What makes a host have a trait.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sign {
    /// `uname` says one of these.
    Machine(&'static [&'static str]),
    /// An x86 processor with all of these flags.
    X86(&'static [&'static str]),
    /// An x86 processor of one of these makers, with the flag.
    X86Of(&'static [&'static str], &'static str),
    /// A 64-bit ARM processor with this flag.
    Arm64(&'static str),
    /// The processor's name begins so.
    Model(&'static str),
    /// A core is more than one logical processor.
    Threads,
    /// `firmware` is this.
    Firmware(&'static str),
    /// Secure boot is on.
    SecureBoot,
    /// A TPM of this version.
    Tpm(u64),
    /// A TPM with this driver.
    TpmDriver(&'static str),
    /// A card with virtual functions.
    Sriov,
    /// A card with remote memory access.
    Rdma,
    /// A disk that is known to spin, or known not to.
    Disk {
        /// Whether it spins.
        spins: bool,
    },
}

use Sign::{Arm64, Disk as DiskThat, Machine, Model, X86, X86Of};

const X86_MACHINES: &[&str] = &["x86_64", "i686"];
const INTEL: &[&str] = &["GenuineIntel"];
const AMD: &[&str] = &["AuthenticAMD", "HygonGenuine"];

/// The traits that are detected, the most telling first.
pub(super) const TRAITS: &[(&str, Sign)] = &[
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
    ("COMPUTE_FIRMWARE_BIOS", Sign::Firmware("bios")),
    ("COMPUTE_FIRMWARE_UEFI", Sign::Firmware("uefi")),
    ("COMPUTE_SECURITY_UEFI_SECURE_BOOT", Sign::SecureBoot),
    ("STORAGE_DISK_SSD", DiskThat { spins: false }),
    ("STORAGE_DISK_HDD", DiskThat { spins: true }),
    ("HW_NIC_SRIOV", Sign::Sriov),
    ("HW_NIC_OFFLOAD_RDMA", Sign::Rdma),
    ("HW_CPU_HYPERTHREADING", Sign::Threads),
    ("COMPUTE_SECURITY_TPM_2_0", Sign::Tpm(2)),
    ("COMPUTE_SECURITY_TPM_1_2", Sign::Tpm(1)),
    // Virtualisation and what shields it.
    ("HW_CPU_X86_VMX", X86(&["vmx"])),
    ("HW_CPU_X86_SVM", X86(&["svm"])),
    ("HW_CPU_X86_AMD_SEV", X86(&["sev"])),
    ("HW_CPU_X86_AMD_SEV_ES", X86(&["sev_es"])),
    ("HW_CPU_X86_AMD_SEV_SNP", X86(&["sev_snp"])),
    ("HW_CPU_X86_INTEL_TDX", X86(&["tdx_host_platform"])),
    ("HW_CPU_X86_SGX", X86(&["sgx"])),
    ("HW_CPU_PPC64LE_POWER9", Model("POWER9")),
    ("HW_CPU_PPC64LE_POWER8", Model("POWER8")),
    // What programs are built for: wide vectors and cryptography.
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
    // What answers to the faults of processors.
    ("HW_CPU_X86_INTEL_SPEC_CTRL", X86Of(INTEL, "ibrs")),
    ("HW_CPU_X86_INTEL_SSBD", X86Of(INTEL, "ssbd")),
    ("HW_CPU_X86_INTEL_MD_CLEAR", X86Of(INTEL, "md_clear")),
    ("HW_CPU_X86_INTEL_PCID", X86Of(INTEL, "pcid")),
    ("HW_CPU_X86_AMD_IBPB", X86Of(AMD, "ibpb")),
    ("HW_CPU_X86_AMD_SSBD", X86Of(AMD, "ssbd")),
    ("HW_CPU_X86_AMD_VIRT_SSBD", X86Of(AMD, "virt_ssbd")),
    ("HW_CPU_X86_STIBP", X86(&["stibp"])),
    // 64-bit ARM, all of it: fewer than the limit.
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
    // What only old or few processors have, and what all of them have.
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
    // Second names for what has one above, and how a TPM is spoken to.
    ("HW_CPU_X86_INTEL_VMX", X86Of(INTEL, "vmx")),
    ("HW_CPU_X86_AMD_SVM", X86Of(AMD, "svm")),
    ("COMPUTE_SECURITY_TPM_CRB", Sign::TpmDriver("tpm_crb")),
    ("COMPUTE_SECURITY_TPM_TIS", Sign::TpmDriver("tpm_tis")),
];

/// Writes down what the table finds, sorted, and where that is too much, how much is left out.
pub(super) fn say(found: &Detected<'_>, seen: &mut Seen) {
    let mut names: Vec<&str> = TRAITS.iter().filter(|(_, sign)| found.shows(*sign)).map(|(name, _)| *name).collect();
    seen.left_out("traits", names.len().saturating_sub(MAX_TRAITS), MAX_TRAITS);
    names.truncate(MAX_TRAITS);
    names.sort_unstable();
    seen.traits = names.into_iter().map(str::to_owned).collect();
}

impl Detected<'_> {
    fn shows(&self, sign: Sign) -> bool {
        let flags = &self.cpu.flags;
        let is_x86 = X86_MACHINES.contains(&self.architecture);
        match sign {
            Machine(names) => names.contains(&self.architecture),
            X86(needed) => is_x86 && needed.iter().all(|flag| flags.contains(*flag)),
            X86Of(makers, flag) => is_x86 && self.is_made_by(makers) && flags.contains(flag),
            Arm64(flag) => self.architecture == "aarch64" && flags.contains(flag),
            Model(start) => self.cpu.model.as_deref().is_some_and(|model| model.starts_with(start)),
            Sign::Threads => self.cpu.has_threads,
            Sign::Firmware(kind) => self.firmware.kind == Some(kind),
            Sign::SecureBoot => self.firmware.has_secure_boot,
            Sign::Tpm(version) => self.firmware.tpm_version == Some(version),
            Sign::TpmDriver(driver) => self.firmware.tpm_driver.as_deref() == Some(driver),
            Sign::Sriov => self.network.has_sriov(),
            Sign::Rdma => self.network.has_rdma(),
            DiskThat { spins } => self.disks.iter().any(|disk| disk.rotational() == Some(spins)),
        }
    }

    fn is_made_by(&self, makers: &[&str]) -> bool {
        self.cpu.vendor.as_deref().is_some_and(|vendor| makers.contains(&vendor))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use stemma_core::traits::standard;

    use super::*;

    fn detect(architecture: &str, vendor: &str, flags: &str) -> Seen {
        let cpu = Cpu {
            vendor: Some(vendor.to_owned()),
            flags: flags.split(' ').map(str::to_owned).collect(),
            ..Cpu::default()
        };
        let (firmware, network) = (Firmware::default(), Network::default());
        let mut seen = Seen::default();
        say(&Detected { architecture, cpu: &cpu, firmware: &firmware, network: &network, disks: &[] }, &mut seen);
        seen
    }

    #[test]
    fn each_trait_is_standard_and_stands_once() {
        let names: BTreeSet<&str> = TRAITS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), TRAITS.len());
        for name in names {
            assert!(standard().contains(&name), "{name}");
        }
    }

    #[test]
    fn flags_mean_what_they_mean_on_their_processor() {
        for (architecture, vendor, flags, expected) in [
            (
                "x86_64",
                "GenuineIntel",
                "aes pcid",
                "COMPUTE_ARCH_X86_64 HW_ARCH_X86_64 HW_CPU_X86_AESNI HW_CPU_X86_INTEL_PCID",
            ),
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

    #[test]
    fn of_too_many_the_least_telling_are_left_out() {
        let all = TRAITS.iter().filter_map(|(_, sign)| match sign {
            X86(flags) => Some(flags.join(" ")),
            X86Of(_, flag) => Some((*flag).to_owned()),
            _ => None,
        });
        let flags = all.collect::<Vec<_>>().join(" ");
        let seen = detect("x86_64", "GenuineIntel", &flags);
        assert_eq!(seen.traits.len(), 50);
        assert!(seen.traits.is_sorted());
        assert!(seen.traits.iter().any(|name| name == "HW_CPU_X86_AVX512VNNI"));
        assert!(!seen.traits.iter().any(|name| name == "HW_CPU_X86_MMX"));
        let shown = TRAITS.iter().filter(|(name, _)| {
            name.ends_with("_X86_64") || name.starts_with("HW_CPU_X86_") && !name.starts_with("HW_CPU_X86_AMD_")
        });
        let of_amd_by_flag = ["HW_CPU_X86_AMD_SEV", "HW_CPU_X86_AMD_SEV_ES", "HW_CPU_X86_AMD_SEV_SNP"].len();
        let left_out = shown.count() + of_amd_by_flag - 50;
        assert_eq!(
            seen.findings,
            [format!("{left_out} traits are left out of the facts: at most 50 are reported, the most telling first")]
        );
    }
}
