//! Sets up the process attributes that commands inherit, such as limits, signals and umask. So these attributes do not
//! depend on the program that started the agent: a service manager, a shell, `nohup` or cron. `docs/agent.md` describes
//! the attributes of a command.
//!
//! A child inherits these attributes from its parent, so the agent sets them for itself, once, when it starts. To set
//! them between fork and exec of each command, code would be needed that may neither allocate nor lock. There are two
//! exceptions: the OOM score, which is the default only while a command starts (`OomScoreGuard`), and the terminal of
//! an agent that is the leader of its session (`detach_command_terminal`). The module `spawn` sets account,
//! environment, directory, standard streams and process group for each command.

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

/// True if this process was started so that the end of its terminal or connection does not end it (`nohup`).
static IGNORES_HANGUP: AtomicBool = AtomicBool::new(false);

/// The umask for new files and directories. It is the default umask of a systemd service.
const UMASK: u32 = 0o022;

/// The file with the OOM score of this process. By this score, the kernel chooses the process to kill when memory is
/// short.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";

/// The device that is always the controlling terminal of the process that opens it.
const TERMINAL: &CStr = c"/dev/tty";

/// Maximum delay that the kernel may add to a timer, in nanoseconds. It is the kernel's default, which the first
/// process has.
const TIMER_SLACK_NS: Option<NonZeroU64> = NonZeroU64::new(50_000);

/// The directories in which a program is searched if its name contains no slash and the task sets no other `PATH`.
pub(super) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The file of user accounts.
pub(super) const PASSWD: &str = "/etc/passwd";

/// `linux/securebits.h`: the lock bits. Each lock bit is the bit above the secure bit that it locks.
const SECURE_LOCKS: u32 = 0b1010_1010;

/// `linux/ioprio.h`: the target is one process.
const IOPRIO_WHO_PROCESS: libc::c_int = 1;
/// `linux/ioprio.h`: no I/O class, so that the niceness determines the I/O priority.
const IOPRIO_NONE: libc::c_int = 0;
/// `linux/personality.h`: the default personality without flags. A flag could, for example, disable address
/// randomisation.
const PER_LINUX: libc::c_ulong = 0;

/// `linux/prctl.h`: marks a process whose disk writes help to free memory.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// The `prctl` options about memory that are reset by setting them to zero. They disable huge pages, merge equal pages,
/// mark a process whose disk writes help to free memory, and set the notification about failing memory.
const MEMORY_OPTIONS: [libc::c_int; 4] =
    [libc::PR_SET_THP_DISABLE, libc::PR_SET_MEMORY_MERGE, PR_SET_IO_FLUSHER, libc::PR_MCE_KILL];

const MIB: u64 = 1024 * 1024;

/// The signals that the C library reserves for itself and does not expose.
const LIBC_SIGNALS: [i32; 2] = [32, 33];

/// The signals of a program's own fault for which Tokio cannot install a handler. A program that continues after such a
/// signal faults again. SIGBUS is not one of them, because Tokio accepts a handler for it.
const UNHANDLED_FAULT_SIGNALS: [i32; 3] = [libc::SIGILL, libc::SIGFPE, libc::SIGSEGV];

/// The resource limits that the agent sets for itself: the soft and the hard limits of a systemd service, `None` if
/// unlimited. [`set_up_process`] sets the two limits that depend on the machine (processes and pending signals).
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

/// Sets the process attributes that the commands of this process inherit, as far as the rights of the process allow.
/// Must be called once, at the start of `main`, before a second thread exists.
pub fn set_up_process() {
    set_close_on_exec();
    if !is_session_leader() {
        detach_terminal();
    }
    umask(Mode::from_raw_mode(UMASK));
    reset_secure_bits();
    reset_user_and_groups();
    clear_inheritable_capabilities();
    reset_scheduling();
    reset_memory_options();
    use_all_cpus();
    // The error is ignored, because an agent without the right to change its niceness runs with the inherited niceness.
    let _ = setpriority_process(None, 0);
    for (resource, soft, hard) in LIMITS {
        set_limit(resource, soft, hard);
    }
    // The kernel gives these two limits to the first process: half of the maximum number of threads.
    if let Some(half_of_max_threads) = max_threads().map(|threads| threads / 2) {
        set_limit(Resource::Nproc, Some(half_of_max_threads), Some(half_of_max_threads));
        set_limit(Resource::Sigpending, Some(half_of_max_threads), Some(half_of_max_threads));
    }
    handle_ignored_signals();
    unblock_signals();
}

/// Resets the secure bits of this process (`setpriv --securebits`, `SecureBits=` of a unit), except locked bits. Secure
/// bits change which capabilities a process has as user 0 or after a change of its user. If this process may not change
/// them, nothing is changed. Call this before [`reset_user_and_groups`], because secure bits affect a change of ids.
fn reset_secure_bits() {
    if let Ok(current) = capabilities_secure_bits() {
        let _ = set_capabilities_secure_bits(CapabilitiesSecureBits::from_bits_retain(locked_bits(current.bits())));
    }
}

/// Returns those of the secure bits that are locked and cannot be reset, with their lock bits.
const fn locked_bits(bits: u32) -> u32 {
    let locks = bits & SECURE_LOCKS;
    bits & (locks | locks >> 1)
}

/// Sets all user ids of this process to the effective user, and all its group ids to the primary group of that user.
/// Removes all supplementary groups. So commands and new files belong to one account. The agent may have been started
/// in another group (`sg`, `newgrp`, `Group=` of a unit), or with another real user (`setpriv --ruid`). Ids that this
/// process may not change are unchanged.
fn reset_user_and_groups() {
    let _ = set_thread_groups(&[]);
    let (user, group) = (geteuid(), getegid());
    let primary = Gid::from_raw(accounts::primary_group(Path::new(PASSWD), user.as_raw()));
    // If the process may not change to the primary group, its real and saved group become the effective group, so that
    // the process has only one group.
    let _ = set_thread_res_gid(primary, primary, primary).or_else(|_| set_thread_res_gid(group, group, group));
    let _ = set_thread_res_uid(user, user, user);
    // After a change of ids, the kernel denies a process its own files in /proc/self. As all ids are equal now, this is
    // not necessary, so access is allowed again.
    let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
}

/// Marks all file descriptors above 2 as close-on-exec, so that commands do not inherit them. For example, the script
/// that started the agent may hold a lock file open. A daemon that a task started would then hold this lock until it
/// ends.
#[expect(unsafe_code, reason = "no safe call changes a descriptor by its number")]
fn set_close_on_exec() {
    let Ok(files) = fs::read_dir("/proc/self/fd") else { return };
    for file in files.flatten().filter_map(|file| file.file_name().to_str()?.parse().ok()).filter(|&file| file > 2) {
        // SAFETY: the descriptor is open. No other thread exists that could close it. The descriptor of `read_dir`
        // itself is open until the loop ends.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        let _ = fcntl_setfd(file, FdFlags::CLOEXEC);
    }
}

/// Returns whether this process is the leader of its session.
#[expect(unsafe_code, reason = "the safe call takes no session for one that began outside of a container")]
fn is_session_leader() -> bool {
    // SAFETY: both functions only have numbers as arguments and results.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// Opens the controlling terminal of this process. Returns `None` if there is none, or if it cannot be opened.
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

/// Detaches a command from the terminal of the agent, before the command is executed. This is needed only if the agent
/// is a session leader (`ssh -t`, a container with a terminal). A session leader must not detach itself: the terminal
/// would then belong to no session, and nobody would get Ctrl-C and the end of the connection.
#[expect(unsafe_code, reason = "no safe call gives up a terminal for a command alone")]
pub(super) fn detach_command_terminal(command: &mut tokio::process::Command) {
    if !is_session_leader() || open_terminal().is_none() {
        return;
    }
    let is_by_path = command.as_std().get_program().as_encoded_bytes().contains(&b'/');
    let detach = move || -> io::Result<()> {
        detach_terminal();
        if is_by_path {
            // Without `pre_exec`, the standard library starts such a command by `posix_spawn`, which leaves these
            // signals ignored. They are ignored here too, so that a command gets the same signals in both cases.
            for number in LIBC_SIGNALS {
                set_signal_action(number, libc::SIG_IGN);
            }
        }
        Ok(())
    };
    // SAFETY: `detach` only makes system calls, and neither allocates nor locks.
    unsafe { command.pre_exec(detach) };
}

/// Clears the inheritable capabilities that are not ambient. Ambient capabilities are not cleared, because whoever set
/// them (`AmbientCapabilities=` of a unit) wanted commands to inherit them.
fn clear_inheritable_capabilities() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ambient = status_field(&status, "CapAmb:").and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    if let Ok(current) = capabilities(None) {
        let inheritable = current.inheritable & CapabilitySet::from_bits_retain(ambient);
        let _ = set_capabilities(None, CapabilitySets { inheritable, ..current });
    }
}

/// Resets scheduling policy, I/O class, personality and timer slack to the kernel's defaults. Settings that this
/// process may not change are unchanged.
#[expect(unsafe_code, reason = "no safe call sets a policy, an I/O class or a personality")]
fn reset_scheduling() {
    let priority: libc::c_int = 0;
    // SAFETY: the kernel reads the priority during the call, and no other argument is a pointer. Raw system calls are
    // used because the function of some C libraries does not set a policy.
    unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_OTHER, &raw const priority);
        libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_NONE);
        libc::personality(PER_LINUX);
    }
    let _ = set_current_timer_slack(TIMER_SLACK_NS);
}

/// Resets the memory options that this process inherited. Errors are ignored: this process may not have the right to
/// change an option, and an older kernel does not support all options.
#[expect(unsafe_code, reason = "no safe call resets these options")]
fn reset_memory_options() {
    let zero: libc::c_ulong = 0;
    for option in MEMORY_OPTIONS {
        // SAFETY: no argument is a pointer.
        unsafe { libc::prctl(option, zero, zero, zero, zero) };
    }
}

/// Allows this process to run on all CPUs on which the first process may run. So CPUs that the host reserves
/// (`isolcpus=`, or `CPUAffinity=` of the service manager) are not used. The kernel leaves out CPUs that the cgroup of
/// this process does not have.
fn use_all_cpus() {
    let init_status = fs::read_to_string("/proc/1/status").unwrap_or_default();
    if let Some(cpus) = status_field(&init_status, "Cpus_allowed_list:").and_then(parse_cpu_list) {
        let _ = sched_setaffinity(None, &cpus);
    }
}

/// Parses a list of CPUs in the kernel's format: numbers and ranges, separated by commas, as in `0-3,8`. Leaves out
/// numbers that are too high for a [`CpuSet`]. Returns `None` for any other text.
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

/// Returns the value of a field in the text of `/proc/PID/status`. `field` is the name with its colon.
fn status_field<'a>(status: &'a str, field: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(field)).map(str::trim)
}

/// Sets the soft and hard limit of a resource. `None` means unlimited. If this process may not raise the hard limit,
/// the hard limit is not raised, and the soft limit is set to at most the hard limit.
fn set_limit(resource: Resource, soft: Option<u64>, hard: Option<u64>) {
    if setrlimit(resource, Rlimit { current: soft, maximum: hard }).is_err() {
        let maximum = min_limit(hard, getrlimit(resource).maximum);
        // Lowering a limit never fails.
        let _ = setrlimit(resource, Rlimit { current: min_limit(soft, maximum), maximum });
    }
}

/// Returns the lower of two limits, where `None` means unlimited.
fn min_limit(first: Option<u64>, second: Option<u64>) -> Option<u64> {
    first.into_iter().chain(second).min()
}

/// Returns the maximum number of threads on this machine, as configured in the kernel.
fn max_threads() -> Option<u64> {
    fs::read_to_string("/proc/sys/kernel/threads-max").ok()?.trim().parse().ok()
}

/// Installs empty handlers for the signals that this process ignores since its start (`nohup`, a script's `&`). A
/// command would inherit that a signal is ignored. It does not inherit a handler, because exec resets a signal with a
/// handler to its default. The agent itself still does nothing on such a signal, unless another part of it waits for
/// the signal. Signals that cannot have a handler are reset to their default here. Also stores whether SIGHUP was
/// ignored, for [`is_hangup_ignored`].
fn handle_ignored_signals() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    // The standard library ignores SIGPIPE for the agent itself, and restores it for each command.
    let ignored = ignored_signals(&status).filter(|number| *number != Signal::PIPE.as_raw());
    let has_no_handler = |number: &i32| LIBC_SIGNALS.contains(number) || UNHANDLED_FAULT_SIGNALS.contains(number);
    let (signals_to_reset, ignored): (Vec<i32>, Vec<i32>) = ignored.partition(has_no_handler);
    IGNORES_HANGUP.store(ignored.contains(&Signal::HUP.as_raw()), Ordering::Relaxed);
    for number in signals_to_reset {
        set_signal_action(number, libc::SIG_DFL);
    }
    if ignored.is_empty() {
        return;
    }
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
    let _runtime_guard = runtime.enter();
    for number in ignored {
        let _ = signal(SignalKind::from_raw(number));
    }
}

/// Returns whether this process was started so that the end of its terminal or connection does not end it (`nohup`).
#[must_use]
pub fn is_hangup_ignored() -> bool {
    IGNORES_HANGUP.load(Ordering::Relaxed)
}

/// Sets the action of a signal to the default or to ignored, by a raw system call. The functions of the C library
/// refuse to change the signals that the library reserves for itself. A parent that used `posix_spawn` may have left
/// such a signal ignored.
#[expect(unsafe_code, reason = "no safe call changes a signal that the C library reserves")]
fn set_signal_action(number: i32, action: libc::sighandler_t) {
    // The `sigaction` struct of the kernel: the action, then flags and mask of zero. This array is at least as long as
    // the struct on each architecture.
    let sigaction = [action, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: the kernel reads the struct during the call, and the old action is not requested.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, number, sigaction.as_ptr(), std::ptr::null_mut::<u64>(), size_of::<u64>());
    }
}

/// Unblocks all signals, for this thread and those that it starts.
#[expect(unsafe_code, reason = "no safe call changes the mask of signals")]
fn unblock_signals() {
    // SAFETY: zeros are a valid signal set, and the set is emptied before it is read. The old mask is not requested.
    unsafe {
        let mut empty_set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut empty_set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const empty_set, std::ptr::null_mut());
    }
}

/// Returns the numbers of the signals that a process ignores, from the text of its `/proc/PID/status`.
fn ignored_signals(status: &str) -> impl Iterator<Item = i32> {
    let mask = status_field(status, "SigIgn:");
    let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    (1..=64).filter(move |number| mask >> (number - 1) & 1 == 1)
}

/// Sets the OOM score of this process to the default while this value lives, so that a command started during that time
/// inherits the default. The score that protects the agent (`OOMScoreAdjust=`) must not protect its commands.
pub(super) struct OomScoreGuard(Option<String>);

impl OomScoreGuard {
    /// Sets the OOM score to the default, 0, and stores the old score. Stores nothing if the score is 0 or cannot be
    /// set.
    pub(super) fn new() -> Self {
        let score = fs::read_to_string(OOM_SCORE).ok().filter(|score| score.trim() != "0");
        Self(score.filter(|_| fs::write(OOM_SCORE, "0").is_ok()))
    }
}

impl Drop for OomScoreGuard {
    fn drop(&mut self) {
        if let Some(score) = &self.0 {
            // The error is ignored: an agent that may not lower its score runs with the default score.
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

    /// Name of the environment variable by which `run_probes` passes a root directory to the process that it starts.
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

    /// Runs a program with its arguments (`words`) as the agent does, and returns its output.
    fn probe_output(root: &Path, words: &[&str]) -> String {
        let host = RealHost::new(root).unwrap();
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        runtime().block_on(host.run(&HostCommand::new(words, Duration::from_mins(2)))).unwrap().output
    }

    /// Acts as the agent in the process that `run_probes` starts. Does nothing if [`ROOT_VARIABLE`] is not set.
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

    /// Disables huge pages for this process, as a program that starts the agent may do. No shell command can do this.
    #[expect(unsafe_code, reason = "no safe call disables huge pages")]
    fn disable_huge_pages() {
        let (yes, nothing): (libc::c_ulong, libc::c_ulong) = (1, 0);
        // SAFETY: no argument is a pointer.
        let result = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, yes, nothing, nothing, nothing) };
        assert_eq!(result, 0);
    }

    /// Starts an agent by a shell script, and returns the output of each probe command that the agent ran, by its name.
    /// The agent is this test program, which then runs only the test `probe_process_runs_for_other_test`.
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
        // The word `unlimited` is not a number, and gives `None`.
        let value = |word: Option<&str>| word.unwrap().parse().ok();
        // A line has the name of the limit in columns 4 to 25, after `Max `, and then the soft and the hard limit.
        let lines = text.lines().filter(|line| line.starts_with("Max "));
        let limits = lines.map(|line| {
            let (name, mut values) = (line[4..26].trim(), line[26..].split_ascii_whitespace());
            (name, value(values.next()), value(values.next()))
        });
        limits.collect()
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

    /// Returns a chain of commands that starts the agent with process attributes that a service manager would not set.
    /// Commands that do not work on this machine are left out.
    fn modified_launcher() -> String {
        let wrappers = [
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
        let works = |wrapper: &&&str| {
            let mut words = wrapper.split(' ');
            let output = std::process::Command::new(words.next().unwrap()).args(words).arg("true").output();
            output.is_ok_and(|output| output.status.success())
        };
        wrappers.iter().filter(works).copied().collect::<Vec<_>>().join(" ")
    }

    /// Returns commands that start the agent at a terminal: as the session leader, and from a shell that is the session
    /// leader. Empty if the program `script` cannot be used.
    fn terminal_launchers() -> impl Iterator<Item = String> {
        let script_output = std::process::Command::new("script").args(["-qec", "true", "/dev/null"]).output();
        // `script` joins the words into one shell command.
        let path_has_blank = std::env::current_exe().unwrap().to_string_lossy().contains(char::is_whitespace);
        let can_use_script = !path_has_blank && script_output.is_ok_and(|script_output| script_output.status.success());
        let commands = ["exec $*", "$*; exit \\$?"].into_iter().filter(move |_| can_use_script);
        commands.map(|command| format!("at_terminal() {{ SHELL=/bin/sh script -qec \"{command}\" /dev/null; }}; at_terminal"))
    }

    /// Returns the CPUs that a process gets if `taskset` requests all CPUs of the first process for it.
    fn all_cpus() -> String {
        let script = "taskset -pc \"$(sed -n 's/^Cpus_allowed_list:.//p' /proc/1/status)\" $$ >/dev/null; exec grep Cpus_allowed_list: /proc/self/status";
        let output = std::process::Command::new("/bin/sh").args(["-c", script]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts the agent in several ways. Most of them change process attributes, such as the umask, limits and signals.
    /// The commands that the agent runs find the documented attributes, as far as the rights of the test process allow.
    #[test]
    fn y02_command_environment_matches_documentation_for_any_launcher() {
        let unusual_launcher = "umask 077; trap '' HUP INT QUIT ILL FPE SEGV TERM USR1 CHLD TSTP; cd /usr; ulimit -n 64; ulimit -f 2000; ulimit -s 1024; \
                   ulimit -t 1000; ulimit -l 64; ulimit -c unlimited; echo 500 >/proc/self/oom_score_adj; exec 5</etc/passwd 9</etc/group; \
                   exec env --block-signal=HUP --block-signal=TERM --block-signal=PIPE LANG=de_DE LC_ALL=it_IT TZ=Asia/Tokyo IFS=x BASH_ENV=/x \
                   ENV=/x LD_LIBRARY_PATH=/x PATH=/bin:/usr/bin HOME=/x PWD=/x nice -n 5";
        let unusual_launcher = format!("{unusual_launcher} {}", modified_launcher());
        let nohup = "umask 000; exec nohup";
        let launchers = ["exec", nohup, "umask 0027; trap '' PIPE TERM; exec env -u HOME -u LANG", unusual_launcher.as_str()]
            .map(str::to_owned);
        for script in launchers.into_iter().chain(terminal_launchers()) {
            let script = script.as_str();
            let root = tempfile::tempdir().unwrap();
            let outputs = run_probes(root.path(), script);
            let real_root = root.path().canonicalize().unwrap();
            let mut environment: Vec<_> = outputs["environment"].lines().collect();
            environment.sort_unstable();
            let root_variable = format!("STEMMA_ROOT={}", real_root.display());
            let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
            assert_eq!(environment, ["HOME=/root", "LANG=C.UTF-8", path, &root_variable], "{script}");
            assert_eq!(outputs["directory"].trim(), real_root.to_str().unwrap(), "{script}");
            assert_eq!(outputs["input"], "/dev/null\n", "{script}");
            // Descriptor 3 is the directory that `ls` itself has open.
            assert_eq!(outputs["files"], "0\n1\n2\n3\n", "{script}");
            let status: Vec<_> = outputs["status"].lines().filter_map(|line| line.split_once(":\t")).collect();
            let [("Umask", "0022"), ("SigBlk", "0000000000000000"), ("SigIgn", ignored)] = status[..] else {
                panic!("{script}: {status:?}")
            };
            // The first probe is started by its name, so no signal is ignored. The second is started by its path
            // (`posix_spawn`), so it ignores the two signals of the C library.
            assert_eq!(ignored, "0000000000000000", "{script}");
            assert_eq!(outputs["by path"], "SigIgn:\t0000000180000000\n", "{script}");
            assert_eq!(outputs["score"], "0\n", "{script}");
            assert!(outputs["nice"] == "0\n" || !may_raise_limits(), "{script}: {}", outputs["nice"]);
            check_limits(script, &outputs["limits"]);
            check_scheduling_and_rights(script, &outputs);
        }
    }

    /// Checks the scheduling, memory options and rights that the probe commands found, and that the documentation
    /// contains these values. `script` is the launcher, for messages.
    fn check_scheduling_and_rights(script: &str, outputs: &BTreeMap<&str, String>) {
        for phrase in [
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
            assert!(DOCUMENTATION.contains(phrase), "{phrase}");
        }
        assert_eq!(outputs["policy"], "0\n", "{script}");
        assert_eq!(outputs["slack"], "50000\n", "{script}");
        assert_eq!(outputs["personality"], "00000000\n", "{script}");
        assert_eq!(outputs["cpus"], all_cpus(), "{script}");
        assert_eq!(outputs["terminal"], "none\n", "{script}");
        let has_huge_pages = if Path::new("/sys/kernel/mm/transparent_hugepage").exists() { "1" } else { "0" };
        assert_eq!(status_field(&outputs["memory"], "THP_enabled:"), Some(has_huge_pages), "{script}");
        // Without an I/O class, some kernels report the class that follows from the niceness.
        let io = outputs["io"].trim();
        assert!(io.starts_with("none") || io == "best-effort: prio 4", "{script}: {io}");
        // CAP_SETUID, CAP_SETGID and CAP_SETPCAP.
        if has_capabilities(1 << 6 | 1 << 7 | 1 << 8) && geteuid().is_root() {
            assert_eq!(outputs["ids"], "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n", "{script}");
            assert_eq!(outputs["secure bits"], "Securebits: [none]\n", "{script}");
        }
        let rights = &outputs["rights"];
        assert_eq!(status_field(rights, "CapInh:"), status_field(rights, "CapAmb:"), "{script}");
        assert!(status_field(rights, "Groups:") == Some("") || !may_leave_groups(), "{script}: {rights}");
    }

    /// `linux/securebits.h`: `noroot` is 1 and its lock 2, `no_setuid_fixup` is 4 and its lock 8.
    #[test]
    fn y02_locked_bits_keeps_only_locked() {
        for (bits, expected) in [(0, 0), (1, 0), (3, 3), (2, 2), (0b0111, 0b0011), (0b1101, 0b1100), (0b0101_0101, 0)] {
            assert_eq!(locked_bits(bits), expected, "{bits:b}");
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
            let cpus = parse_cpu_list(list).map(|set| (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect::<Vec<_>>());
            assert_eq!(cpus, numbers, "{list}");
        }
    }

    /// Checks that the limits in `text`, from `/proc/PID/limits` of a command, are those of the documentation. An agent
    /// that may not raise a hard limit can give a command a lower one. `script` is the launcher, for messages.
    fn check_limits(script: &str, text: &str) {
        let (actual, mut documented) = (parse_limits(text), documented_limits());
        assert_eq!((actual.len(), documented.len()), (16, 16), "{text}");
        let position = |name: &str| actual.iter().position(|(actual, ..)| *actual == name).expect(name);
        documented.sort_by_key(|(name, ..)| position(name));
        for ((name, soft, hard), (_, documented_soft, documented_hard)) in actual.into_iter().zip(documented) {
            let is_as_documented = hard == documented_hard || (!may_raise_limits() && min_limit(hard, documented_hard) == hard);
            assert!(is_as_documented, "{script}: {name}: hard {hard:?}, {documented_hard:?}");
            assert_eq!(soft, min_limit(documented_soft, hard), "{script}: {name}");
        }
    }
}
