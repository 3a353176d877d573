//! Sets up the process attributes that commands inherit, so that they do not depend on what started the agent. Under a
//! service manager, from a shell, by `nohup` or by cron, a command finds what `docs/agent.md` describes.
//!
//! A child inherits these attributes from its parent, so the agent sets them for itself, once, when it starts. Setting
//! them between fork and exec of each command would need code that may neither allocate nor lock. The one exception is
//! the terminal of an agent that leads its session (`detach_command_terminal`). Environment, directory, standard input
//! and process group are set for each command by `spawn`.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{
    DumpableBehavior, Gid, Resource, Rlimit, Signal, getegid, geteuid, getrlimit, set_dumpable_behavior, setpriority_process,
    setrlimit, umask,
};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, CpuSet, capabilities, capabilities_secure_bits, sched_setaffinity,
    set_capabilities, set_capabilities_secure_bits, set_current_timer_slack, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use tokio::signal::unix::{SignalKind, signal};

use super::accounts;

/// True if this process was started so that the end of its terminal or connection does not end it.
static IGNORES_HANGUP: AtomicBool = AtomicBool::new(false);

/// The umask for new files and directories, as under a service manager.
const UMASK: u32 = 0o022;

/// The score by which the kernel chooses which process to kill when memory is short.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";

/// The path that opens the controlling terminal of a process.
const TERMINAL: &CStr = c"/dev/tty";

/// Maximum delay of a timer, in nanoseconds, as for the first process.
const TIMER_SLACK_NS: Option<NonZeroU64> = NonZeroU64::new(50_000);

/// The file of user accounts.
pub(super) const PASSWD: &str = "/etc/passwd";

/// `linux/securebits.h`: the lock bits. Each is the bit above the one that it locks.
const SECURE_LOCKS: u32 = 0b1010_1010;

/// `linux/ioprio.h`: the target is one process.
const IOPRIO_WHO_PROCESS: libc::c_int = 1;
/// `linux/ioprio.h`: no class, so that niceness decides.
const IOPRIO_NONE: libc::c_int = 0;
/// `linux/personality.h`: no flags, such as the one that disables address randomisation.
const PER_LINUX: libc::c_ulong = 0;

/// `linux/prctl.h`: marks a process whose disk writes help to free memory.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// The memory options of a process that are reset by setting them to zero: no huge pages, merging of equal pages, disk
/// writes that help to free memory, and the notification about failing memory.
const MEMORY_OPTIONS: [libc::c_int; 4] =
    [libc::PR_SET_THP_DISABLE, libc::PR_SET_MEMORY_MERGE, PR_SET_IO_FLUSHER, libc::PR_MCE_KILL];

const MIB: u64 = 1024 * 1024;

/// The signals that the C library reserves for itself and does not expose.
const LIBC_SIGNALS: [i32; 2] = [32, 33];

/// The signals of a program's own faults. Tokio installs no handlers for these, because a program that continued after
/// such a signal would fault again.
const FAULT_SIGNALS: [i32; 3] = [libc::SIGILL, libc::SIGFPE, libc::SIGSEGV];

/// The limits of a systemd service, each soft and hard. `None` for no limit.
const LIMITS: [(Resource, Option<u64>, Option<u64>); 14] = [
    (Resource::Cpu, None, None),
    (Resource::Fsize, None, None),
    (Resource::Data, None, None),
    (Resource::Stack, Some(8 * MIB), None),
    (Resource::Core, Some(0), None),
    (Resource::Rss, None, None),
    (Resource::Nofile, Some(1024), Some(524_288)),
    (Resource::Memlock, Some(8 * MIB), Some(8 * MIB)),
    (Resource::As, None, None),
    (Resource::Locks, None, None),
    (Resource::Msgqueue, Some(819_200), Some(819_200)),
    (Resource::Nice, Some(0), Some(0)),
    (Resource::Rtprio, Some(0), Some(0)),
    (Resource::Rttime, None, None),
];

/// Sets what the commands of this process will inherit, as far as its rights allow. Must be called once, before
/// anything else and before a second thread exists.
pub fn set_up_process() {
    set_close_on_exec();
    if !is_session_leader() {
        detach_terminal();
    }
    umask(Mode::from_raw_mode(UMASK));
    reset_secure_bits();
    reset_accounts();
    clear_inheritable_capabilities();
    reset_scheduling();
    reset_memory_options();
    use_all_cpus();
    // Without the right to change the niceness, it stays, and so the error is ignored.
    let _ = setpriority_process(None, 0);
    for (resource, soft, hard) in LIMITS {
        set_limit(resource, soft, hard);
    }
    // The kernel gives these limits to the first process: half of the maximum number of threads.
    if let Some(half) = max_threads().map(|threads| threads / 2) {
        set_limit(Resource::Nproc, Some(half), Some(half));
        set_limit(Resource::Sigpending, Some(half), Some(half));
    }
    handle_ignored_signals();
    unblock_signals();
}

/// Resets the secure bits (`setpriv --securebits`, `SecureBits=` of a unit). They prevent that user 0, or a change of
/// the user, gives or takes capabilities. Locked bits stay. Without the right to change secure bits, all stay. Call
/// this before [`reset_accounts`], because secure bits affect a change of ids.
fn reset_secure_bits() {
    if let Ok(current) = capabilities_secure_bits() {
        let _ = set_capabilities_secure_bits(CapabilitiesSecureBits::from_bits_retain(locked_bits(current.bits())));
    }
}

/// Returns the secure bits that cannot be reset, with their locks.
const fn locked_bits(bits: u32) -> u32 {
    let locks = bits & SECURE_LOCKS;
    bits & (locks | locks >> 1)
}

/// Gives this process, its commands and its files a single account: the effective user, and the primary group of that
/// user. The agent may have been started in another group (`sg`, `newgrp`, `Group=` of a unit), or with another real
/// user (`setpriv --ruid`). Without the right to change them, the ids stay.
fn reset_accounts() {
    let _ = set_thread_groups(&[]);
    let (user, group) = (geteuid(), getegid());
    let primary = Gid::from_raw(accounts::primary_group(Path::new(PASSWD), user.as_raw()));
    // If the process may not change to its primary group, its real and saved group become the effective one, so that it
    // has only one group.
    let _ = set_thread_res_gid(primary, primary, primary).or_else(|_| set_thread_res_gid(group, group, group));
    let _ = set_thread_res_uid(user, user, user);
    // After a change of ids, the kernel denies a process its own files in /proc/self. As all ids are equal now, there
    // is no reason for this, so it is reverted.
    let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
}

/// Marks inherited file descriptors as close-on-exec. Otherwise a lock of the script that started the agent would last
/// as long as a daemon that a task started.
#[expect(unsafe_code, reason = "no safe call names a file that somebody else opened")]
fn set_close_on_exec() {
    let Ok(files) = fs::read_dir("/proc/self/fd") else { return };
    for file in files.flatten().filter_map(|file| file.file_name().to_str()?.parse().ok()).filter(|&file| file > 2) {
        // SAFETY: the descriptor is open. No other thread could close it, and that of the listing is open until the
        // loop ends.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        let _ = fcntl_setfd(file, FdFlags::CLOEXEC);
    }
}

/// Returns whether this process is the leader of its session.
#[expect(unsafe_code, reason = "the safe call takes no session for one that began outside of a container")]
fn is_session_leader() -> bool {
    // SAFETY: both take and return numbers only.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// Opens the controlling terminal of this process. `None` if it has none.
fn open_terminal() -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(TERMINAL, flags, Mode::empty()).ok()
}

/// Detaches this process from its terminal, because a service has none. Otherwise the kernel would stop a command that
/// reads from the terminal, because the command is not in the foreground. The signals of the terminal (Ctrl-C) still
/// reach the agent, because they go to the foreground process group.
#[expect(unsafe_code, reason = "no safe call gives up a terminal")]
fn detach_terminal() {
    if let Some(terminal) = open_terminal() {
        // SAFETY: no argument is a pointer.
        unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCNOTTY) };
    }
}

/// Detaches a command from the terminal that the agent keeps. A session leader (`ssh -t`, a container with a terminal)
/// cannot detach itself: the terminal would then belong to no session, and nobody would get Ctrl-C and the end of the
/// connection.
#[expect(unsafe_code, reason = "no safe call gives up a terminal for a command alone")]
pub(super) fn detach_command_terminal(command: &mut tokio::process::Command) {
    if !is_session_leader() || open_terminal().is_none() {
        return;
    }
    let is_by_path = command.as_std().get_program().as_encoded_bytes().contains(&b'/');
    let detach = move || -> io::Result<()> {
        detach_terminal();
        if is_by_path {
            // Without this step, the command would be started by `posix_spawn`, which leaves these signals ignored.
            for number in LIBC_SIGNALS {
                set_action(number, libc::SIG_IGN);
            }
        }
        Ok(())
    };
    // SAFETY: it only makes system calls, and neither allocates nor locks.
    unsafe { command.pre_exec(detach) };
}

/// Clears the inheritable capabilities that are not ambient. Ambient capabilities stay, because whoever set them
/// (`AmbientCapabilities=` of a unit) meant them for the commands too.
fn clear_inheritable_capabilities() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ambient = status_field(&status, "CapAmb:").and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    if let Ok(current) = capabilities(None) {
        let inheritable = current.inheritable & CapabilitySet::from_bits_retain(ambient);
        let _ = set_capabilities(None, CapabilitySets { inheritable, ..current });
    }
}

/// Resets scheduling policy, I/O class, personality and timer slack to the defaults. Without the right to change one,
/// it stays.
#[expect(unsafe_code, reason = "no safe call sets a policy, an I/O class or a personality")]
fn reset_scheduling() {
    let priority: libc::c_int = 0;
    // SAFETY: the priority is read during the call, and no other argument is a pointer. Raw calls are used because some
    // C libraries do nothing to set a policy.
    unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_OTHER, &raw const priority);
        libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_NONE);
        libc::personality(PER_LINUX);
    }
    let _ = set_current_timer_slack(TIMER_SLACK_NS);
}

/// Resets the memory options that this process inherited. Without the right to change one, it stays. An older kernel
/// does not know all of them.
#[expect(unsafe_code, reason = "no safe call takes these back")]
fn reset_memory_options() {
    let zero: libc::c_ulong = 0;
    for option in MEMORY_OPTIONS {
        // SAFETY: no argument is a pointer.
        unsafe { libc::prctl(option, zero, zero, zero, zero) };
    }
}

/// Lets this process run on the CPUs of the first process. These exclude CPUs that the host reserves (`isolcpus=`, or
/// `CPUAffinity=` of the service manager). The kernel leaves out CPUs that its cgroup lacks.
fn use_all_cpus() {
    let first = fs::read_to_string("/proc/1/status").unwrap_or_default();
    if let Some(cpus) = status_field(&first, "Cpus_allowed_list:").and_then(parse_cpu_list) {
        let _ = sched_setaffinity(None, &cpus);
    }
}

/// Parses a list of CPUs in the kernel's format: numbers and ranges, separated by commas.
fn parse_cpu_list(list: &str) -> Option<CpuSet> {
    let mut cpus = CpuSet::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        for cpu in first..=last.min(CpuSet::MAX_CPU - 1) {
            cpus.set(cpu);
        }
    }
    Some(cpus)
}

/// Returns a field of `/proc/PID/status`.
fn status_field<'a>(status: &'a str, field: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(field)).map(str::trim)
}

/// Sets a limit. Without the right to raise the hard limit, the hard limit stays, and the soft limit is set to at most
/// the hard limit.
fn set_limit(resource: Resource, soft: Option<u64>, hard: Option<u64>) {
    if setrlimit(resource, Rlimit { current: soft, maximum: hard }).is_err() {
        let maximum = min_limit(hard, getrlimit(resource).maximum);
        // Lowering a limit never fails.
        let _ = setrlimit(resource, Rlimit { current: min_limit(soft, maximum), maximum });
    }
}

/// Returns the lower of two limits.
fn min_limit(first: Option<u64>, second: Option<u64>) -> Option<u64> {
    first.into_iter().chain(second).min()
}

/// Returns the maximum number of threads of the kernel.
fn max_threads() -> Option<u64> {
    fs::read_to_string("/proc/sys/kernel/threads-max").ok()?.trim().parse().ok()
}

/// Installs empty handlers for the signals that this process was started to ignore (`nohup`, a script's `&`). So the
/// agent still does nothing on such a signal, but a command no longer inherits that it is ignored: exec resets a
/// handled signal to its default. Signals that cannot have a handler are reset to their default here.
fn handle_ignored_signals() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    // The standard library ignores SIGPIPE for the agent itself, and restores it for each command.
    let ignored = ignored_signals(&status).filter(|number| *number != Signal::PIPE.as_raw());
    let is_given_back = |number: &i32| LIBC_SIGNALS.contains(number) || FAULT_SIGNALS.contains(number);
    let (given_back, ignored): (Vec<i32>, Vec<i32>) = ignored.partition(is_given_back);
    IGNORES_HANGUP.store(ignored.contains(&Signal::HUP.as_raw()), Ordering::Relaxed);
    for number in given_back {
        set_action(number, libc::SIG_DFL);
    }
    if ignored.is_empty() {
        return;
    }
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
    let _within = runtime.enter();
    for number in ignored {
        let _ = signal(SignalKind::from_raw(number));
    }
}

/// Returns whether this process was started so that the end of its terminal or connection does not end it (`nohup`).
#[must_use]
pub fn is_hangup_ignored() -> bool {
    IGNORES_HANGUP.load(Ordering::Relaxed)
}

/// Sets a signal to its default or to ignored, by a system call. The functions of the C library do not change the
/// signals that the library reserves for itself, and a parent that used `posix_spawn` may have left these ignored.
#[expect(unsafe_code, reason = "no safe call names a signal that the C library keeps for itself")]
fn set_action(number: i32, action: libc::sighandler_t) {
    // The `sigaction` struct of the kernel: the action, then flags and mask of zero. On no architecture is it longer.
    let action = [action, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: the address is read during the call, and the old action is not requested.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, number, action.as_ptr(), std::ptr::null_mut::<u64>(), size_of::<u64>());
    }
}

/// Unblocks all signals, for this thread and those that it starts.
#[expect(unsafe_code, reason = "no safe call changes the mask of signals")]
fn unblock_signals() {
    // SAFETY: zeros are a valid set, and it is emptied before it is read. The old mask is not requested.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Returns the signals that a process ignores, from its `/proc/PID/status`.
fn ignored_signals(status: &str) -> impl Iterator<Item = i32> {
    let mask = status_field(status, "SigIgn:");
    let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    (1..=64).filter(move |number| mask >> (number - 1) & 1 == 1)
}

/// Sets the OOM score of this process to the default while this value lives, so that a command started during that time
/// inherits the default. The score that protects the agent (`OOMScoreAdjust=`) must not protect its commands.
pub(super) struct OomScoreGuard(Option<String>);

impl OomScoreGuard {
    pub(super) fn new() -> Self {
        let score = fs::read_to_string(OOM_SCORE).ok().filter(|own| own.trim() != "0");
        Self(score.filter(|_| fs::write(OOM_SCORE, "0").is_ok()))
    }
}

impl Drop for OomScoreGuard {
    fn drop(&mut self) {
        if let Some(score) = &self.0 {
            // Without the right to lower the score again, the agent keeps the default.
            let _ = fs::write(OOM_SCORE, score.trim());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::host::real::RealHost;
    use crate::host::{Host as _, HostCommand};

    const DOCUMENTATION: &str = include_str!("../../../../docs/agent.md");

    /// The environment variable with the root directory of the process that another test starts.
    const ROOT_VARIABLE: &str = "STEMMA_TEST_SURROUNDINGS";

    /// The attributes that a command finds, each with a program that prints it. A shell would change some, so it is
    /// used only where needed.
    const PROBES: [(&str, &[&str]); 19] = [
        ("environment", &["env"]),
        ("directory", &["readlink", "/proc/self/cwd"]),
        ("input", &["readlink", "/proc/self/fd/0"]),
        ("files", &["ls", "/proc/self/fd"]),
        ("status", &["grep", "-E", "^(Umask|SigBlk|SigIgn):", "/proc/self/status"]),
        ("by path", &["/bin/grep", "SigIgn:", "/proc/self/status"]),
        ("limits", &["cat", "/proc/self/limits"]),
        ("score", &["cat", OOM_SCORE]),
        ("nice", &["cut", "-d ", "-f19", "/proc/self/stat"]),
        ("rights", &["grep", "-E", "^(Groups|CapInh|CapAmb):", "/proc/self/status"]),
        ("policy", &["cut", "-d ", "-f41", "/proc/self/stat"]),
        ("cpus", &["grep", "Cpus_allowed_list:", "/proc/self/status"]),
        ("io", &["ionice"]),
        ("slack", &["cat", "/proc/self/timerslack_ns"]),
        ("personality", &["cat", "/proc/self/personality"]),
        ("terminal", &["sh", "-c", "( : </dev/tty ) 2>/dev/null && echo some || echo none"]),
        ("memory", &["grep", "THP_enabled:", "/proc/self/status"]),
        ("ids", &["grep", "-E", "^(Uid|Gid):", "/proc/self/status"]),
        ("secure bits", &["sh", "-c", "setpriv --dump | grep -i securebits"]),
    ];

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    fn probe_output(root: &Path, words: &[&str]) -> String {
        let host = RealHost::new(root).unwrap();
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        runtime().block_on(host.run(&HostCommand::new(words, Duration::from_mins(2)))).unwrap().output
    }

    /// The agent process that another test starts. Does nothing if run on its own.
    #[test]
    fn probe_process_runs_for_other_test() {
        if let Some(root) = std::env::var_os(ROOT_VARIABLE) {
            disable_huge_pages();
            set_up_process();
            for (name, words) in PROBES {
                fs::write(Path::new(&root).join(name), probe_output(Path::new(&root), words)).unwrap();
            }
        }
    }

    /// Disables huge pages, as a program that starts others may do. No shell can.
    #[expect(unsafe_code, reason = "no safe call asks for it")]
    fn disable_huge_pages() {
        let (yes, nothing): (libc::c_ulong, libc::c_ulong) = (1, 0);
        // SAFETY: no argument is a pointer.
        let asked = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, yes, nothing, nothing, nothing) };
        assert_eq!(asked, 0);
    }

    /// Returns what commands find if a script starts their agent.
    fn run_probes(root: &Path, script: &str) -> BTreeMap<&'static str, String> {
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", &format!("{script} \"$@\""), "sh"]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", "host::real::process_setup::tests::probe_process_runs_for_other_test"]).env(ROOT_VARIABLE, root);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        PROBES.iter().map(|(name, _)| (*name, fs::read_to_string(root.join(name)).unwrap())).collect()
    }

    /// Returns the limits in the documentation: name, soft and hard.
    fn documented_limits() -> Vec<(&'static str, Option<u64>, Option<u64>)> {
        let half = fs::read_to_string("/proc/sys/kernel/threads-max").unwrap().trim().parse::<u64>().unwrap() / 2;
        let value = |text: &str| match text.trim() {
            "unlimited" => None,
            "half of `kernel.threads-max`" => Some(half),
            number => Some(number.replace(',', "").parse().unwrap()),
        };
        let rows = DOCUMENTATION.lines().filter_map(|line| line.strip_prefix("| `Max "));
        let cells = rows.map(|row| row.split('|').collect::<Vec<_>>());
        cells.map(|cells| (cells[0].trim().trim_end_matches('`'), value(cells[1]), value(cells[2]))).collect()
    }

    /// Returns the limits of a process: name, soft and hard.
    fn parse_limits(text: &str) -> Vec<(&str, Option<u64>, Option<u64>)> {
        let value = |word: Option<&str>| word.unwrap().parse().ok();
        let of = |line: &'_ str| {
            let (name, mut values) = (line[4..26].trim(), line[26..].split_ascii_whitespace());
            (name.len(), value(values.next()), value(values.next()))
        };
        let lines = text.lines().filter(|line| line.starts_with("Max "));
        lines.map(|line| (line, of(line))).map(|(line, (name, soft, hard))| (&line[4..4 + name], soft, hard)).collect()
    }

    /// Returns whether this process has all of these capabilities.
    fn has_capabilities(mask: u64) -> bool {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        u64::from_str_radix(status_field(&status, "CapEff:").unwrap(), 16).unwrap() & mask == mask
    }

    /// Returns whether this process may raise hard limits and lower its niceness.
    fn may_raise_limits() -> bool {
        has_capabilities(1 << 23 | 1 << 24)
    }

    /// Returns whether this process may drop its groups.
    fn may_leave_groups() -> bool {
        has_capabilities(1 << 6) && fs::read_to_string("/proc/self/setgroups").is_ok_and(|text| text.trim() == "allow")
    }

    /// Returns commands that start the agent with other attributes than a service manager does, as far as this machine
    /// allows.
    fn modified_launcher() -> String {
        let wraps = [
            "ionice -c 3",
            "taskset -c 0",
            "setarch -R",
            "chrt -b 0",
            "setpriv --groups 4,24",
            "setpriv --inh-caps +net_raw",
            "setpriv --securebits +no_setuid_fixup",
            "setpriv --regid 27 --keep-groups",
            "setpriv --egid 24 --keep-groups",
            "setpriv --ruid 1000",
        ];
        let works = |wrap: &&&str| {
            let mut words = wrap.split(' ');
            let tried = std::process::Command::new(words.next().unwrap()).args(words).arg("true").output();
            tried.is_ok_and(|tried| tried.status.success())
        };
        wraps.iter().filter(works).copied().collect::<Vec<_>>().join(" ")
    }

    /// Returns commands that start the agent at a terminal: as the session leader, and from a shell that is. Empty if
    /// there is no `script`.
    fn terminal_launchers() -> impl Iterator<Item = String> {
        let tried = std::process::Command::new("script").args(["-qec", "true", "/dev/null"]).output();
        // `script` joins the words into one shell command.
        let has_blank = std::env::current_exe().unwrap().to_string_lossy().contains(char::is_whitespace);
        let is_there = !has_blank && tried.is_ok_and(|tried| tried.status.success());
        let commands = ["exec $*", "$*; exit \\$?"].into_iter().filter(move |_| is_there);
        commands.map(|command| format!("at_terminal() {{ SHELL=/bin/sh script -qec \"{command}\" /dev/null; }}; at_terminal"))
    }

    /// Returns the CPUs that `taskset` gets when it requests all of those of the first process.
    fn all_cpus() -> String {
        let script = "taskset -pc \"$(sed -n 's/^Cpus_allowed_list:.//p' /proc/1/status)\" $$ >/dev/null; exec grep Cpus_allowed_list: /proc/self/status";
        let output = std::process::Command::new("/bin/sh").args(["-c", script]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn y02_command_environment_matches_documentation_for_any_launcher() {
        let odd = "umask 077; trap '' HUP INT QUIT ILL FPE SEGV TERM USR1 CHLD TSTP; cd /usr; ulimit -n 64; ulimit -f 2000; ulimit -s 1024; \
                   ulimit -t 1000; ulimit -l 64; ulimit -c unlimited; echo 500 >/proc/self/oom_score_adj; exec 5</etc/passwd 9</etc/group; \
                   exec env --block-signal=HUP --block-signal=TERM --block-signal=PIPE LANG=de_DE LC_ALL=it_IT TZ=Asia/Tokyo IFS=x BASH_ENV=/x \
                   ENV=/x LD_LIBRARY_PATH=/x PATH=/bin:/usr/bin HOME=/x PWD=/x nice -n 5";
        let odd = format!("{odd} {}", modified_launcher());
        let nohup = "umask 000; exec nohup";
        let starts = ["exec", nohup, "umask 0027; trap '' PIPE TERM; exec env -u HOME -u LANG", odd.as_str()].map(str::to_owned);
        for script in starts.into_iter().chain(terminal_launchers()) {
            let script = script.as_str();
            let root = tempfile::tempdir().unwrap();
            let found = run_probes(root.path(), script);
            let real = root.path().canonicalize().unwrap();
            let mut environment: Vec<_> = found["environment"].lines().collect();
            environment.sort_unstable();
            let own = format!("STEMMA_ROOT={}", real.display());
            let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
            assert_eq!(environment, ["HOME=/root", "LANG=C.UTF-8", path, &own], "{script}");
            assert_eq!(found["directory"].trim(), real.to_str().unwrap(), "{script}");
            assert_eq!(found["input"], "/dev/null\n", "{script}");
            // The last one is that of the listing.
            assert_eq!(found["files"], "0\n1\n2\n3\n", "{script}");
            let status: Vec<_> = found["status"].lines().filter_map(|line| line.split_once(":\t")).collect();
            let [("Umask", "0022"), ("SigBlk", "0000000000000000"), ("SigIgn", ignored)] = status[..] else {
                panic!("{script}: {status:?}")
            };
            // `sh` is started by its path here, so it ignores the C library's signals and passes that on.
            assert_eq!(ignored, "0000000000000000", "{script}");
            assert_eq!(found["by path"], "SigIgn:\t0000000180000000\n", "{script}");
            assert_eq!(found["score"], "0\n", "{script}");
            assert!(found["nice"] == "0\n" || !may_raise_limits(), "{script}: {}", found["nice"]);
            check_limits(script, &found["limits"]);
            check_scheduling_and_rights(script, &found);
        }
    }

    fn check_scheduling_and_rights(script: &str, found: &BTreeMap<&str, String>) {
        for said in [
            "`0000000180000000`",
            "`0000000000000000`",
            "`SCHED_OTHER`",
            "`PER_LINUX`",
            "No supplementary",
            "`ionice`",
            "50 µs",
            "CPUs",
            "inheritable",
            "primary group",
            "`SecureBits=`",
            "`/dev/tty`",
            "huge pages",
        ] {
            assert!(DOCUMENTATION.contains(said), "{said}");
        }
        assert_eq!(found["policy"], "0\n", "{script}");
        assert_eq!(found["slack"], "50000\n", "{script}");
        assert_eq!(found["personality"], "00000000\n", "{script}");
        assert_eq!(found["cpus"], all_cpus(), "{script}");
        assert_eq!(found["terminal"], "none\n", "{script}");
        let has_huge_pages = if Path::new("/sys/kernel/mm/transparent_hugepage").exists() { "1" } else { "0" };
        assert_eq!(status_field(&found["memory"], "THP_enabled:"), Some(has_huge_pages), "{script}");
        // Without an I/O class, some kernels report the one that follows from the niceness.
        let io = found["io"].trim();
        assert!(io.starts_with("none") || io == "best-effort: prio 4", "{script}: {io}");
        // CAP_SETUID, CAP_SETGID and CAP_SETPCAP.
        if has_capabilities(1 << 6 | 1 << 7 | 1 << 8) && geteuid().is_root() {
            assert_eq!(found["ids"], "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n", "{script}");
            assert_eq!(found["secure bits"], "Securebits: [none]\n", "{script}");
        }
        let rights = &found["rights"];
        assert_eq!(status_field(rights, "CapInh:"), status_field(rights, "CapAmb:"), "{script}");
        assert!(status_field(rights, "Groups:") == Some("") || !may_leave_groups(), "{script}: {rights}");
    }

    /// `linux/securebits.h`: `noroot` is 1 and its lock 2, `no_setuid_fixup` is 4 and its lock 8.
    #[test]
    fn y02_locked_bits_keeps_only_locked() {
        for (bits, stays) in [(0, 0), (1, 0), (3, 3), (2, 2), (0b0111, 0b0011), (0b1101, 0b1100), (0b0101_0101, 0)] {
            assert_eq!(locked_bits(bits), stays, "{bits:b}");
        }
    }

    #[test]
    fn y02_parse_cpu_list_reads_kernel_format() {
        for (list, numbers) in [
            ("0", Some(vec![0])),
            ("0-3", Some(vec![0, 1, 2, 3])),
            ("1,3-4,9", Some(vec![1, 3, 4, 9])),
            ("1023-5000", Some(vec![1023])),
            ("", None),
            ("a-b", None),
        ] {
            let found = parse_cpu_list(list).map(|set| (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect::<Vec<_>>());
            assert_eq!(found, numbers, "{list}");
        }
    }

    fn check_limits(script: &str, text: &str) {
        let (found, mut documented) = (parse_limits(text), documented_limits());
        assert_eq!((found.len(), documented.len()), (16, 16), "{text}");
        let position = |name: &str| found.iter().position(|(found, ..)| *found == name).expect(name);
        documented.sort_by_key(|(name, ..)| position(name));
        for ((name, soft, hard), (_, documented_soft, documented_hard)) in found.into_iter().zip(documented) {
            let is_as_documented = hard == documented_hard || (!may_raise_limits() && min_limit(hard, documented_hard) == hard);
            assert!(is_as_documented, "{script}: {name}: hard {hard:?}, {documented_hard:?}");
            assert_eq!(soft, min_limit(documented_soft, hard), "{script}: {name}");
        }
    }
}
