//! What a worker takes away from itself before it sees the first untrusted byte.
//!
//! No files (landlock), no network, no other programs (seccomp), no new privileges, memory and CPU bounded by rlimits.
//! What an older kernel lacks is left out: the process boundary and the parent's clock hold anyway.

use std::io;

/// Takes standard output for the protocol: returns a private copy, and lets descriptor 1 write to standard error, so
/// that a library that prints cannot spoil an answer.
#[cfg(unix)]
pub(super) fn take_stdout() -> io::Result<std::fs::File> {
    use std::os::fd::AsFd;
    let pipe = io::stdout().as_fd().try_clone_to_owned()?;
    // SAFETY: both are descriptors of this process; dup2 touches no memory.
    if unsafe { libc::dup2(2, 1) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(std::fs::File::from(pipe))
}

/// Files, network and programs are out of reach from here on. Called before any thread is started.
#[cfg(target_os = "linux")]
pub(super) fn enter() {
    // Each part is best effort: containers and old kernels refuse some of them.
    let _ = no_files();
    let _ = no_network_and_programs();
}

/// Elsewhere the process boundary and the limits must do.
#[cfg(not(target_os = "linux"))]
pub(super) fn enter() {}

#[cfg(target_os = "linux")]
fn no_files() -> Result<(), landlock::RulesetError> {
    use landlock::{ABI, Access, AccessFs, Ruleset, RulesetAttr};
    // No rule is added, so that everything handled is denied. The crate sets no_new_privs.
    Ruleset::default().handle_access(AccessFs::from_all(ABI::V5))?.create()?.restrict_self()?;
    Ok(())
}

#[cfg(target_os = "linux")]
fn no_network_and_programs() -> Result<(), seccompiler::Error> {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    let denied = [
        libc::SYS_socket,
        libc::SYS_socketpair,
        libc::SYS_connect,
        libc::SYS_bind,
        libc::SYS_listen,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_kill,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_io_uring_setup,
        libc::SYS_open_by_handle_at,
        libc::SYS_mount,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_keyctl,
    ];
    let filter = SeccompFilter::new(
        denied.into_iter().map(|call| (call, Vec::new())).collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        std::env::consts::ARCH.try_into()?,
    )?;
    let program: BpfProgram = filter.try_into()?;
    seccompiler::apply_filter(&program)
}

/// Bounds memory and CPU time of this process for the next document, and sets an alarm that ends the process should
/// the parent be gone by then.
#[cfg(unix)]
pub(super) fn limit(memory_bytes: u64, cpu_seconds: u64, wall_seconds: u64) {
    // SAFETY: a zeroed rusage is a valid value of this plain C structure, and getrusage fills it.
    let used = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec).max(0) as u64
    };
    set_soft(libc::RLIMIT_AS, memory_bytes);
    // CPU time counts from the start of the process; one second more for what the division cut off.
    set_soft(libc::RLIMIT_CPU, used.saturating_add(cpu_seconds).saturating_add(1));
    set_soft(libc::RLIMIT_CORE, 0);
    // SAFETY: alarm takes a number and touches no memory.
    unsafe { libc::alarm(wall_seconds.saturating_add(10).min(1 << 30) as u32) };
}

/// Ends the alarm of [`limit`]: a worker that waits for its next document may wait for long, and ends with its parent by
/// itself, because its pipe closes.
#[cfg(unix)]
pub(super) fn rest() {
    // SAFETY: alarm takes a number and touches no memory.
    unsafe { libc::alarm(0) };
}

#[cfg(all(unix, target_os = "linux", target_env = "gnu"))]
type Resource = libc::__rlimit_resource_t;
#[cfg(all(unix, not(all(target_os = "linux", target_env = "gnu"))))]
type Resource = libc::c_int;

#[cfg(unix)]
fn set_soft(resource: Resource, value: u64) {
    // SAFETY: a zeroed rlimit is a valid value of this plain C structure; the calls read and write only it.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(resource, &raw mut limit) == 0 {
            limit.rlim_cur = value.min(limit.rlim_max);
            libc::setrlimit(resource, &raw const limit);
        }
    }
}
