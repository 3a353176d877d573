//! What a command has of whoever started the agent: nothing that it could run otherwise by. Under a service manager, from a shell, by `nohup`
//! or by cron it finds what `docs/agent.md` says.
//!
//! A child has these of its parent, so the agent sets them for itself, once, when it starts. To set them between fork and exec of each command
//! would be code that may neither allocate nor lock. Environment, directory, standard input and process group are each command's own
//! (`spawn`). The terminal of an agent that leads its session is the one exception.

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
    DumpableBehavior, Gid, Resource, Rlimit, Signal, getegid, geteuid, getrlimit, set_dumpable_behavior,
    setpriority_process, setrlimit, umask,
};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, CpuSet, capabilities, capabilities_secure_bits,
    sched_setaffinity, set_capabilities, set_capabilities_secure_bits, set_current_timer_slack, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use tokio::signal::unix::{SignalKind, signal};

use super::accounts;

/// Whether this process was started so that the end of its terminal, or of its connection, does not end it.
static OUTLIVES_TERMINAL: AtomicBool = AtomicBool::new(false);

/// What new files and directories are closed by: as under a service manager.
const UMASK: u32 = 0o022;

/// By what the kernel chooses whom it ends where memory is short.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";

/// The name by which a process opens the terminal that it was started at, whichever that is.
const TERMINAL: &CStr = c"/dev/tty";

/// How late a sleep may end, in nanoseconds: as of the first process.
const TIMER_SLACK: Option<NonZeroU64> = NonZeroU64::new(50_000);

/// Where accounts stand.
pub(super) const PASSWD: &str = "/etc/passwd";

/// `linux/securebits.h`: the locks, each behind the bit that it locks.
const SECURE_LOCKS: u32 = 0b1010_1010;

/// `linux/ioprio.h`: of one process.
const IOPRIO_WHO_PROCESS: libc::c_int = 1;
/// `linux/ioprio.h`: no class, so that niceness decides.
const IOPRIO_NONE: libc::c_int = 0;
/// `linux/personality.h`: none of its flags, as that which keeps addresses where they are.
const PER_LINUX: libc::c_ulong = 0;

/// `linux/prctl.h`: that what it writes to disks helps to free memory.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// What a process may ask of the kernel about its memory, and takes back by asking with zeros: that it gets no huge pages, that equal pages of it
/// are merged, that what it writes helps to free memory, and how it is told of memory that fails.
const ASKED_OF_MEMORY: [libc::c_int; 4] =
    [libc::PR_SET_THP_DISABLE, libc::PR_SET_MEMORY_MERGE, PR_SET_IO_FLUSHER, libc::PR_MCE_KILL];

const MIB: u64 = 1024 * 1024;

/// The signals that the C library keeps for itself: it names them to nobody.
const SIGNALS_OF_LIBRARY: [i32; 2] = [32, 33];

/// The signals of a program's own faults. Tokio takes none of them: who goes on after one would fault again.
const FAULTS: [i32; 3] = [libc::SIGILL, libc::SIGFPE, libc::SIGSEGV];

/// The limits that a service of systemd has, each soft and hard; `None`: no limit.
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

/// Sets what the commands of this process will have, as far as it may. Called once, before anything else and before there is another thread.
pub fn settle() {
    close_on_exec();
    if !leads_session() {
        leave_terminal();
    }
    umask(Mode::from_raw_mode(UMASK));
    leave_secure_bits();
    be_one_account();
    inherit_no_capabilities();
    schedule_as_usual();
    ask_nothing_of_memory();
    use_all_cpus();
    // Who may not is left as nice as it was made.
    let _ = setpriority_process(None, 0);
    for (resource, soft, hard) in LIMITS {
        limit(resource, soft, hard);
    }
    // As the kernel gives it to the first process.
    if let Some(half) = threads().map(|threads| threads / 2) {
        limit(Resource::Nproc, Some(half), Some(half));
        limit(Resource::Sigpending, Some(half), Some(half));
    }
    take_ignored_signals();
    unblock_signals();
}

/// Takes back by what a change of the user, or being root, gives or takes no rights (`setpriv --securebits`, `SecureBits=` of a unit), but for
/// what is locked. Who may not keeps it. Before that of the ids, for which it counts.
fn leave_secure_bits() {
    if let Ok(own) = capabilities_secure_bits() {
        let _ = set_capabilities_secure_bits(CapabilitiesSecureBits::from_bits_retain(locked(own.bits())));
    }
}

/// Those of the secure bits that cannot be taken back, with their locks.
const fn locked(bits: u32) -> u32 {
    let locks = bits & SECURE_LOCKS;
    bits & (locks | locks >> 1)
}

/// Has this process, and with it its commands and the files that it makes, be its account alone: the user by whose rights it was started, and the
/// primary group of that one. Whoever started it may stand in another group (`sg`, `newgrp`, `Group=` of a unit), or be somebody else
/// (`setpriv --ruid`). Who may not stays what it is.
fn be_one_account() {
    let _ = set_thread_groups(&[]);
    let (user, group) = (geteuid(), getegid());
    let primary = Gid::from_raw(accounts::primary_group(Path::new(PASSWD), user.as_raw()));
    // One that may not become its primary group is at least in one alone.
    let _ = set_thread_res_gid(primary, primary, primary).or_else(|_| set_thread_res_gid(group, group, group));
    let _ = set_thread_res_uid(user, user, user);
    // The kernel takes the files in /proc/self from one whose ids differ, or change. It is none of these now.
    let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
}

/// Files that this process was started with stay its own: a lock of the script that started it would otherwise last as long as a daemon of a task.
#[expect(unsafe_code, reason = "no safe call names a file that somebody else opened")]
fn close_on_exec() {
    let Ok(files) = fs::read_dir("/proc/self/fd") else { return };
    for file in files.flatten().filter_map(|file| file.file_name().to_str()?.parse().ok()).filter(|&file| file > 2) {
        // SAFETY: it is open: there is no other thread that could close it, and the listing's own is open until the loop is over.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        let _ = fcntl_setfd(file, FdFlags::CLOEXEC);
    }
}

/// Whether this process leads its session.
#[expect(unsafe_code, reason = "the safe call takes no session for one that began outside of a container")]
fn leads_session() -> bool {
    // SAFETY: both take and give numbers alone.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// The terminal that this process was started at; `None` where there is none.
fn terminal() -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(TERMINAL, flags, Mode::empty()).ok()
}

/// Gives up the terminal that this process was started at, as a service has none: a command that asks there would be stopped, since it is not in
/// the foreground. The terminal's signals (Ctrl-C) still come, as they go to the process group that is.
#[expect(unsafe_code, reason = "no safe call gives up a terminal")]
fn leave_terminal() {
    if let Some(terminal) = terminal() {
        // SAFETY: nothing is behind an address.
        unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCNOTTY) };
    }
}

/// Has a command give up the terminal that the agent keeps. One that leads its session (`ssh -t`, a container with a terminal) cannot give it up for
/// itself: the terminal would be nobody's then, and Ctrl-C and the end of the connection would be told to nobody.
#[expect(unsafe_code, reason = "no safe call gives up a terminal for a command alone")]
pub(super) fn without_terminal(command: &mut tokio::process::Command) {
    if !leads_session() || terminal().is_none() {
        return;
    }
    let is_by_path = command.as_std().get_program().as_encoded_bytes().contains(&b'/');
    let leave = move || -> io::Result<()> {
        leave_terminal();
        if is_by_path {
            // A command without this step is started by `posix_spawn`, which has it ignore them.
            for number in SIGNALS_OF_LIBRARY {
                set_action(number, libc::SIG_IGN);
            }
        }
        Ok(())
    };
    // SAFETY: it calls the kernel alone, and neither allocates nor locks.
    unsafe { command.pre_exec(leave) };
}

/// Leaves no capability to commands but those that are ambient: these were given for them, as by `AmbientCapabilities=` of a unit.
fn inherit_no_capabilities() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ambient = of_status(&status, "CapAmb:").and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    if let Ok(own) = capabilities(None) {
        let inheritable = own.inheritable & CapabilitySet::from_bits_retain(ambient);
        let _ = set_capabilities(None, CapabilitySets { inheritable, ..own });
    }
}

/// Has this process run, read and write as any other, and in no other personality. Who may not stays as it was made.
#[expect(unsafe_code, reason = "no safe call sets a policy, an I/O class or a personality")]
fn schedule_as_usual() {
    let priority: libc::c_int = 0;
    // SAFETY: the priority is read within the call, and nothing else is behind an address. The C library's own call for a policy does nothing in
    // some of them.
    unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_OTHER, &raw const priority);
        libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_NONE);
        libc::personality(PER_LINUX);
    }
    let _ = set_current_timer_slack(TIMER_SLACK);
}

/// Takes back what this process was made to ask of the kernel about its memory. Who may not leaves it, and an older kernel knows not all of it.
#[expect(unsafe_code, reason = "no safe call takes these back")]
fn ask_nothing_of_memory() {
    let nothing: libc::c_ulong = 0;
    for asked in ASKED_OF_MEMORY {
        // SAFETY: nothing is behind an address.
        unsafe { libc::prctl(asked, nothing, nothing, nothing, nothing) };
    }
}

/// Has this process run on the CPUs that the first process has: none that the host keeps for something else (`isolcpus=`, or `CPUAffinity=` of
/// the service manager). The kernel leaves out what its cgroup has not.
fn use_all_cpus() {
    let first = fs::read_to_string("/proc/1/status").unwrap_or_default();
    if let Some(cpus) = of_status(&first, "Cpus_allowed_list:").and_then(cpus) {
        let _ = sched_setaffinity(None, &cpus);
    }
}

/// The CPUs of a list as the kernel writes it: numbers, and ranges of them, between commas.
fn cpus(list: &str) -> Option<CpuSet> {
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

/// A field of what the kernel says of a process.
fn of_status<'a>(status: &'a str, field: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(field)).map(str::trim)
}

/// Sets a limit. Who may not raise the hard one keeps it, and has a soft one below it.
fn limit(resource: Resource, soft: Option<u64>, hard: Option<u64>) {
    if setrlimit(resource, Rlimit { current: soft, maximum: hard }).is_err() {
        let maximum = lower(hard, getrlimit(resource).maximum);
        // To lower one is never refused.
        let _ = setrlimit(resource, Rlimit { current: lower(soft, maximum), maximum });
    }
}

/// The lower one of two limits.
fn lower(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// How many threads the kernel has room for.
fn threads() -> Option<u64> {
    fs::read_to_string("/proc/sys/kernel/threads-max").ok()?.trim().parse().ok()
}

/// Takes the signals that this process was made to ignore (`nohup`, a script's `&`): it still does nothing about them, and a command has what is
/// taken at its default, where it would have what is ignored as ignored.
fn take_ignored_signals() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    // The standard library ignores SIGPIPE for the agent itself, and gives it back to each command.
    let ignored = ignored_signals(&status).filter(|number| *number != Signal::PIPE.as_raw());
    let is_given_back = |number: &i32| SIGNALS_OF_LIBRARY.contains(number) || FAULTS.contains(number);
    let (given_back, ignored): (Vec<i32>, Vec<i32>) = ignored.partition(is_given_back);
    OUTLIVES_TERMINAL.store(ignored.contains(&Signal::HUP.as_raw()), Ordering::Relaxed);
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

/// Whether this process was started so that the end of its terminal, or of its connection, does not end it (`nohup`).
#[must_use]
pub fn outlives_terminal() -> bool {
    OUTLIVES_TERMINAL.load(Ordering::Relaxed)
}

/// Gives a signal its default back, or has it ignored. Who starts a program by `posix_spawn`, as a service manager or a script may, has it ignore
/// those that the C library keeps for itself; that library sets none of them.
#[expect(unsafe_code, reason = "no safe call names a signal that the C library keeps for itself")]
fn set_action(number: i32, action: libc::sighandler_t) {
    // Without flags and without a mask, in the kernel's own form, which is no longer than this.
    let action = [action, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: what is at the address is read within the call, and the old action is not asked for.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, number, action.as_ptr(), std::ptr::null_mut::<u64>(), size_of::<u64>());
    }
}

/// Lets all signals through, for this thread and those that it starts.
#[expect(unsafe_code, reason = "no safe call changes the mask of signals")]
fn unblock_signals() {
    // SAFETY: a set of zeros is a set, and it is made empty before it is read; the old mask is not asked for.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// The signals that a process ignores, by what the kernel says of it.
fn ignored_signals(status: &str) -> impl Iterator<Item = i32> {
    let mask = of_status(status, "SigIgn:");
    let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    (1..=64).filter(move |number| mask >> (number - 1) & 1 == 1)
}

/// As long as it lives, a new process is ended for want of memory as any other: what spares the agent (`OOMScoreAdjust=`) spares no command.
pub(super) struct UsualScore(Option<String>);

impl UsualScore {
    pub(super) fn begin() -> Self {
        let own = fs::read_to_string(OOM_SCORE).ok().filter(|own| own.trim() != "0");
        Self(own.filter(|_| fs::write(OOM_SCORE, "0").is_ok()))
    }
}

impl Drop for UsualScore {
    fn drop(&mut self) {
        if let Some(own) = &self.0 {
            // Who may not lower it again is ended as any other.
            let _ = fs::write(OOM_SCORE, own.trim());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::host::real::RealHost;
    use crate::host::{Command, Host as _};

    const DOCUMENTATION: &str = include_str!("../../../../docs/agent.md");

    /// Where the process of another test has its root.
    const ROOT: &str = "STEMMA_TEST_SURROUNDINGS";

    /// What a command finds, each with a program that says it without changing it, as a shell would.
    const QUESTIONS: [(&str, &[&str]); 19] = [
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

    fn answer(root: &Path, words: &[&str]) -> String {
        let host = RealHost::new(root).unwrap();
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        runtime().block_on(host.run(&Command::new(words, Duration::from_mins(2)))).unwrap().output
    }

    /// The agent that another test starts. Without that test there is nothing to do.
    #[test]
    fn an_agent_for_another_test() {
        if let Some(root) = std::env::var_os(ROOT) {
            want_no_huge_pages();
            settle();
            for (name, words) in QUESTIONS {
                fs::write(Path::new(&root).join(name), answer(Path::new(&root), words)).unwrap();
            }
        }
    }

    /// As a program may that starts others: no shell does it.
    #[expect(unsafe_code, reason = "no safe call asks for it")]
    fn want_no_huge_pages() {
        let (yes, nothing): (libc::c_ulong, libc::c_ulong) = (1, 0);
        // SAFETY: nothing is behind an address.
        let asked = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, yes, nothing, nothing, nothing) };
        assert_eq!(asked, 0);
    }

    /// What commands find whose agent a script started.
    fn found(root: &Path, script: &str) -> BTreeMap<&'static str, String> {
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", &format!("{script} \"$@\""), "sh"]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", "host::real::surroundings::tests::an_agent_for_another_test"]).env(ROOT, root);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        QUESTIONS.iter().map(|(name, _)| (*name, fs::read_to_string(root.join(name)).unwrap())).collect()
    }

    /// What the documentation says of limits: name, soft and hard.
    fn documented() -> Vec<(&'static str, Option<u64>, Option<u64>)> {
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

    /// The limits of a process: name, soft and hard.
    fn limits(text: &str) -> Vec<(&str, Option<u64>, Option<u64>)> {
        let value = |word: Option<&str>| word.unwrap().parse().ok();
        let of = |line: &'_ str| {
            let (name, mut values) = (line[4..26].trim(), line[26..].split_ascii_whitespace());
            (name.len(), value(values.next()), value(values.next()))
        };
        let lines = text.lines().filter(|line| line.starts_with("Max "));
        lines.map(|line| (line, of(line))).map(|(line, (name, soft, hard))| (&line[4..4 + name], soft, hard)).collect()
    }

    /// Whether this process has all of these capabilities.
    fn may(mask: u64) -> bool {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        u64::from_str_radix(of_status(&status, "CapEff:").unwrap(), 16).unwrap() & mask == mask
    }

    /// Whether this process may raise hard limits, and make itself less nice.
    fn may_raise() -> bool {
        may(1 << 23 | 1 << 24)
    }

    /// Whether this process may leave its groups.
    fn may_leave_groups() -> bool {
        may(1 << 6) && fs::read_to_string("/proc/self/setgroups").is_ok_and(|text| text.trim() == "allow")
    }

    /// What starts the agent otherwise than a service manager does, as far as this machine lets it.
    fn wrapped() -> String {
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

    /// What starts the agent at a terminal: as the one that leads the session there, and from the shell that does. None where there is no `script`.
    fn at_terminals() -> impl Iterator<Item = String> {
        let tried = std::process::Command::new("script").args(["-qec", "true", "/dev/null"]).output();
        // The words are put together again there.
        let has_blank = std::env::current_exe().unwrap().to_string_lossy().contains(char::is_whitespace);
        let is_there = !has_blank && tried.is_ok_and(|tried| tried.status.success());
        let commands = ["exec $*", "$*; exit \\$?"].into_iter().filter(move |_| is_there);
        commands.map(|command| {
            format!("at_terminal() {{ SHELL=/bin/sh script -qec \"{command}\" /dev/null; }}; at_terminal")
        })
    }

    /// The CPUs that `taskset` gets for who asks for all that the first process has.
    fn all_cpus() -> String {
        let script = "taskset -pc \"$(sed -n 's/^Cpus_allowed_list:.//p' /proc/1/status)\" $$ >/dev/null; exec grep Cpus_allowed_list: /proc/self/status";
        let output = std::process::Command::new("/bin/sh").args(["-c", script]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn y02_a_command_finds_what_the_documentation_says_whoever_started_the_agent() {
        let odd = "umask 077; trap '' HUP INT QUIT ILL FPE SEGV TERM USR1 CHLD TSTP; cd /usr; ulimit -n 64; ulimit -f 2000; ulimit -s 1024; \
                   ulimit -t 1000; ulimit -l 64; ulimit -c unlimited; echo 500 >/proc/self/oom_score_adj; exec 5</etc/passwd 9</etc/group; \
                   exec env --block-signal=HUP --block-signal=TERM --block-signal=PIPE LANG=de_DE LC_ALL=it_IT TZ=Asia/Tokyo IFS=x BASH_ENV=/x \
                   ENV=/x LD_LIBRARY_PATH=/x PATH=/bin:/usr/bin HOME=/x PWD=/x nice -n 5";
        let odd = format!("{odd} {}", wrapped());
        let nohup = "umask 000; exec nohup";
        let starts =
            ["exec", nohup, "umask 0027; trap '' PIPE TERM; exec env -u HOME -u LANG", odd.as_str()].map(str::to_owned);
        for script in starts.into_iter().chain(at_terminals()) {
            let script = script.as_str();
            let root = tempfile::tempdir().unwrap();
            let found = found(root.path(), script);
            let real = root.path().canonicalize().unwrap();
            let mut environment: Vec<_> = found["environment"].lines().collect();
            environment.sort_unstable();
            let own = format!("STEMMA_ROOT={}", real.display());
            let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
            assert_eq!(environment, ["HOME=/root", "LANG=C.UTF-8", path, &own], "{script}");
            assert_eq!(found["directory"].trim(), real.to_str().unwrap(), "{script}");
            assert_eq!(found["input"], "/dev/null\n", "{script}");
            // The listing's own among them.
            assert_eq!(found["files"], "0\n1\n2\n3\n", "{script}");
            let status: Vec<_> = found["status"].lines().filter_map(|line| line.split_once(":\t")).collect();
            let [("Umask", "0022"), ("SigBlk", "0000000000000000"), ("SigIgn", ignored)] = status[..] else {
                panic!("{script}: {status:?}")
            };
            // `sh` is started by its path here, and hands on what it ignores for that.
            assert_eq!(ignored, "0000000000000000", "{script}");
            assert_eq!(found["by path"], "SigIgn:\t0000000180000000\n", "{script}");
            assert_eq!(found["score"], "0\n", "{script}");
            assert!(found["nice"] == "0\n" || !may_raise(), "{script}: {}", found["nice"]);
            y02_limits(script, &found["limits"]);
            y02_scheduling_and_rights(script, &found);
        }
    }

    fn y02_scheduling_and_rights(script: &str, found: &BTreeMap<&str, String>) {
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
        assert_eq!(of_status(&found["memory"], "THP_enabled:"), Some(has_huge_pages), "{script}");
        // A kernel that shows what follows from the niceness, where there is no class, says the latter.
        let io = found["io"].trim();
        assert!(io.starts_with("none") || io == "best-effort: prio 4", "{script}: {io}");
        // CAP_SETUID, CAP_SETGID and CAP_SETPCAP.
        if may(1 << 6 | 1 << 7 | 1 << 8) && geteuid().is_root() {
            assert_eq!(found["ids"], "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n", "{script}");
            assert_eq!(found["secure bits"], "Securebits: [none]\n", "{script}");
        }
        let rights = &found["rights"];
        assert_eq!(of_status(rights, "CapInh:"), of_status(rights, "CapAmb:"), "{script}");
        assert!(of_status(rights, "Groups:") == Some("") || !may_leave_groups(), "{script}: {rights}");
    }

    /// `linux/securebits.h`: noroot is 1 and its lock 2, `no_setuid_fixup` 4 and 8.
    #[test]
    fn y02_of_the_secure_bits_those_that_are_locked_stay() {
        for (bits, stays) in [(0, 0), (1, 0), (3, 3), (2, 2), (0b0111, 0b0011), (0b1101, 0b1100), (0b0101_0101, 0)] {
            assert_eq!(locked(bits), stays, "{bits:b}");
        }
    }

    #[test]
    fn y02_cpus_are_read_as_the_kernel_lists_them() {
        for (list, numbers) in [
            ("0", Some(vec![0])),
            ("0-3", Some(vec![0, 1, 2, 3])),
            ("1,3-4,9", Some(vec![1, 3, 4, 9])),
            ("1023-5000", Some(vec![1023])),
            ("", None),
            ("a-b", None),
        ] {
            let found = cpus(list).map(|set| (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect::<Vec<_>>());
            assert_eq!(found, numbers, "{list}");
        }
    }

    fn y02_limits(script: &str, text: &str) {
        let (found, mut documented) = (limits(text), documented());
        assert_eq!((found.len(), documented.len()), (16, 16), "{text}");
        let position = |name: &str| found.iter().position(|(found, ..)| *found == name).expect(name);
        documented.sort_by_key(|(name, ..)| position(name));
        for ((name, soft, hard), (_, documented_soft, documented_hard)) in found.into_iter().zip(documented) {
            let is_as_documented = hard == documented_hard || (!may_raise() && lower(hard, documented_hard) == hard);
            assert!(is_as_documented, "{script}: {name}: hard {hard:?}, {documented_hard:?}");
            assert_eq!(soft, lower(documented_soft, hard), "{script}: {name}");
        }
    }
}
