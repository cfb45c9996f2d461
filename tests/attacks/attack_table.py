"""Attacks from inside a sandbox: one entry each.

A script is Python that follows ``prelude.py``; in it, all that is tried must be refused. ``ends``: whether it may end in any way
(killed, stopped at its time limit), so that only what is seen outside counts. What is looked at outside, for all of them, is in
``outside.py``. Scripts open what they could harm, and never write to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack. ``seconds``: its time limit. ``isolated``: whether only a sandbox that isolates can withstand it."""

    name: str
    script: str
    ends: bool = False
    seconds: float = 20.0
    isolated: bool = True
    slow: bool = False

    @property
    def source(self) -> str:
        """The script, without the indentation that it has here."""
        return dedent(self.script)


FILES = (
    Attack(
        "files-of-the-host",
        """
        for path in [*places["files"], "/etc/shadow", "/etc/machine-id", "/var/log", "/root", "/home", "/run/systemd", "/sys/kernel"]:
            refused(path, os.stat, path)
            refused(path, os.open, path, os.O_RDONLY)
            refused(path, os.open, f"/workspace/../../..{path}", os.O_RDONLY)
            refused(path, os.open, f"/proc/self/root{path}", os.O_RDONLY)
            refused(path, os.open, f"/proc/1/root{path}", os.O_RDONLY)
            refused(path, os.open, f"/proc/1/cwd{path}", os.O_RDONLY)
        """,
    ),
    Attack(
        "links-to-the-host",
        """
        for number_, path in enumerate(places["files"]):
            link = f"/workspace/link{number_}"
            os.symlink(path, link)
            refused(link, os.open, link, os.O_RDONLY)
            refused(link, os.link, path, f"/workspace/hard{number_}")
            os.unlink(link)
        refused("hard link", os.link, "/usr/bin/env", "/workspace/env")
        """,
    ),
    Attack(
        "files-outside-the-workspace",
        """
        own = ("/workspace", "/tmp", "/dev/shm")
        for folder, names, _ in os.walk("/"):
            if folder.startswith(own) or folder.startswith("/proc") or folder.count("/") > 4:
                names.clear()
                continue
            refused(folder, os.mkdir, f"{folder}/manyhands-breakout")
            refused(folder, os.open, f"{folder}/manyhands-breakout", os.O_WRONLY | os.O_CREAT)
        for path in ("/usr/bin/env", "/bin/sh", "/usr/bin/python3", "/etc/passwd", "/etc/hosts", "/etc/ld.so.cache"):
            refused(path, os.open, path, os.O_WRONLY)
            refused(path, os.chmod, path, 0o777)
            refused(path, os.rename, path, path + "2")
        """,
    ),
    Attack(
        "set-id-files",
        """
        open("/workspace/plain", "w").close()
        descriptor = os.open("/workspace/plain", os.O_RDWR)
        os.mkdir("/workspace/folder")
        for mode in (0o4755, 0o2755, 0o6777):
            for extra in (0, 1 << 16, 1 << 32):
                for call in (lambda: libc.chmod(b"/workspace/plain", ctypes.c_long(mode | extra)),
                             lambda: libc.fchmod(descriptor, ctypes.c_long(mode | extra)),
                             lambda: os.chmod("/workspace/plain", mode),
                             lambda: os.close(os.open(f"/workspace/new{mode}", os.O_CREAT | os.O_WRONLY, mode)),
                             lambda: os.mknod(f"/workspace/node{mode}", stat.S_IFREG | mode)):
                    try:
                        call()
                    except OSError:
                        pass
        for name in os.listdir("/workspace"):
            if os.stat(f"/workspace/{name}").st_mode & (stat.S_ISUID | stat.S_ISGID):
                escaped(name)
        """,
    ),
    Attack(
        "device-nodes",
        """
        for kind, device in ((stat.S_IFCHR, (1, 1)), (stat.S_IFCHR, (1, 3)), (stat.S_IFBLK, (8, 0)), (stat.S_IFBLK, (254, 0))):
            refused(device, os.mknod, "/workspace/node", kind | 0o666, os.makedev(*device))
            refused(device, os.mknod, "/dev/node", kind | 0o666, os.makedev(*device))
        for name in os.listdir("/dev"):
            if name not in ("core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty",
                            "urandom", "zero", "console"):
                escaped(name)
        """,
    ),
)

NETWORK = (
    Attack(
        "loopback-and-metadata",
        """
        def reach(family, address):
            with socket.socket(family) as client:
                client.settimeout(2)
                client.connect(address)
                return client.recv(100)
        for address in [("127.0.0.1", places["port"]), ("169.254.169.254", 80), ("100.100.100.200", 80), ("1.1.1.1", 53), ("10.0.0.1", 80)]:
            refused(address, reach, socket.AF_INET, address)
        for address in [("::1", places["port"]), ("fd00:ec2::254", 80)]:
            refused(address, reach, socket.AF_INET6, address)
        for name in ("localhost", places["host"], "metadata.google.internal"):
            refused(name, reach, socket.AF_INET, (name, places["port"]))
        if {name for _, name in socket.if_nameindex()} != {"lo"}:
            escaped(socket.if_nameindex())
        """,
    ),
    Attack(
        "sockets-of-the-host",
        """
        def reach(address):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(2)
                client.connect(address)
                return client.recv(100)
        for address in (places["socket"], "\\0" + places["abstract"], "/run/dbus/system_bus_socket", "/var/run/docker.sock",
                        "/run/docker.sock", "/run/containerd/containerd.sock", "/run/systemd/private"):
            refused(address, reach, address)
        """,
    ),
    Attack(
        "socket-families",
        """
        fine = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
        for family in [*range(64), 40]:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
                for extra in (0, 1 << 32):
                    if family in fine and kind != socket.SOCK_RAW or family == 16:
                        continue
                    if family == socket.AF_UNIX:
                        continue
                    descriptor = libc.socket(ctypes.c_long(family | extra), kind, 0)
                    if descriptor >= 0:
                        escaped(f"socket({family}, {kind})")
                    libc.socketpair(ctypes.c_long(family | extra), kind, 0, ctypes.byref((ctypes.c_int * 2)()))
        for protocol in range(1, 32):
            if libc.socket(16, socket.SOCK_RAW, protocol) >= 0:
                escaped(f"netlink {protocol}")
        """,
    ),
)

KERNEL = (
    Attack(
        "system-calls",
        """
        memory = ctypes.create_string_buffer(4096)
        pointer = ctypes.addressof(memory)
        for name, arguments in {
            "add_key": (b"user", b"manyhands-breakout", b"x", 1, -3), "request_key": (b"user", b"manyhands-breakout", None, -3),
            "keyctl": (0, -3, 1), "bpf": (0, pointer, 128), "perf_event_open": (pointer, 0, -1, -1, 0), "userfaultfd": (1,),
            "io_uring_setup": (4, pointer), "name_to_handle_at": (-100, b"/", pointer, pointer + 256, 0),
            "open_by_handle_at": (-100, pointer, 0), "syslog": (3, pointer, 100), "init_module": (pointer, 10, b""),
            "finit_module": (0, b"", 0), "delete_module": (b"manyhands_breakout", 0), "kexec_load": (0, 0, 0, 0),
            "fanotify_init": (0, 0), "swapon": (b"/workspace/x", 0), "chroot": (b"/workspace",),
            "pivot_root": (b"/workspace", b"/workspace"), "quotactl": (0x800002 << 8, None, 0, pointer),
        }.items():
            code = refused(name, syscall, name, *arguments)
            if code in (errno.EFAULT, errno.ENOENT, errno.ENOKEY) and name in ("bpf", "perf_event_open", "add_key", "keyctl"):
                escaped(f"{name} is not filtered: {os.strerror(code)}")
        """,
    ),
    Attack(
        "mounts",
        """
        memory = ctypes.create_string_buffer(4096)
        os.makedirs("/workspace/m", exist_ok=True)
        for name, arguments in {
            "mount": (b"none", b"/workspace/m", b"tmpfs", 0, None), "umount2": (b"/proc", 2), "fsopen": (b"tmpfs", 0),
            "fspick": (-100, b"/", 0), "open_tree": (-100, b"/workspace", 1), "move_mount": (-100, b"/workspace", -100, b"/workspace/m", 0),
            "mount_setattr": (-100, b"/", 0, ctypes.addressof(memory), 32), "fsmount": (0, 0, 0),
        }.items():
            refused(name, syscall, name, *arguments)
        for flags in (4096, 32 | 4096, 1 << 18, 1 << 19):
            refused("bind or propagation", syscall, "mount", b"/", b"/workspace/m", None, flags, None)
        refused("remount", syscall, "mount", b"/", b"/", None, 32, None)
        refused("remount of /proc/sys", syscall, "mount", b"/proc/sys", b"/proc/sys", None, 32, None)
        """,
    ),
    Attack(
        "new-namespaces",
        """
        for name, flag in NAMESPACES.items():
            refused(name, syscall, "unshare", flag)
            refused(name, syscall, "unshare", flag | NAMESPACES["user"])
            def cloned(bits):
                child = syscall("clone", bits | signal.SIGCHLD, 0, 0, 0, 0)
                if child == 0:
                    os._exit(0)
                os.waitpid(child, 0)
                return child
            if name != "time":
                refused(name, cloned, flag)
                refused(name, cloned, flag | NAMESPACES["user"])
        arguments = (ctypes.c_uint64 * 11)(NAMESPACES["user"], 0, 0, 0, signal.SIGCHLD)
        def cloned3():
            child = syscall("clone3", ctypes.addressof(arguments), 88)
            if child == 0:
                os._exit(0)
            return child
        refused("clone3", cloned3)
        for file in os.listdir("/proc/1/ns") if os.access("/proc/1/ns", os.R_OK) else ():
            refused(file, lambda: syscall("setns", os.open(f"/proc/1/ns/{file}", os.O_RDONLY), 0))
        refused("unshare(1)", lambda: subprocess.run(["unshare", "-Ur", "true"], check=True) if subprocess.run(
            ["unshare", "-Ur", "true"], capture_output=True).returncode == 0 else os.open("/nothing", 0))
        """,
    ),
    Attack(
        "system-calls-of-other-kinds",
        """
        if platform.machine() == "x86_64":
            wanted = NAMESPACES["user"]
            def other_abi():
                if libc.syscall(ctypes.c_long(0x40000000 | NUMBERS["unshare"]), ctypes.c_long(wanted)) == 0:
                    os._exit(99)
            if in_child(other_abi):
                escaped("unshare by its x32 number")
            def of_32_bits():
                page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
                page.write(b"\\x53\\xb8" + (310).to_bytes(4, "little") + b"\\xbb" + wanted.to_bytes(4, "little") + b"\\xcd\\x80\\x5b\\xc3")
                start = ctypes.addressof(ctypes.c_char.from_buffer(page))
                if ctypes.CFUNCTYPE(ctypes.c_int)(start)() == 0:
                    os._exit(99)
            if in_child(of_32_bits):
                escaped("unshare by int 0x80")
        """,
    ),
    Attack(
        "kernel-files-that-take-writes",
        """
        own = {str(os.getpid()), "self", "thread-self"}
        for top in ("/proc", "/sys"):
            for folder, names, files in os.walk(top):
                if folder == "/proc":
                    names[:] = [name for name in names if not name.isdigit() and name not in own]
                for name in files:
                    path = f"{folder}/{name}"
                    if not os.path.islink(path):
                        refused(path, os.open, path, os.O_WRONLY | os.O_NONBLOCK)
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches",
                     "/proc/sys/fs/binfmt_misc/register", "/proc/sys/kernel/hostname", "/proc/sys/net/ipv4/ip_forward"):
            refused(path, os.open, path, os.O_WRONLY)
            refused(path, os.open, path, os.O_RDWR)
            refused(path, os.chmod, path, 0o666)
        """,
    ),
    Attack(
        "kernel-files-that-tell",
        """
        for path in ("/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/kmsg", "/dev/kmsg", "/dev/mem", "/dev/kmem", "/dev/port",
                     "/proc/timer_list", "/proc/sched_debug", "/proc/latency_stats", "/proc/kpagecount", "/proc/kpageflags",
                     "/proc/sysrq-trigger", "/sys/firmware/acpi/tables/DSDT", "/sys/kernel/security/lockdown"):
            silent(path)
        """,
    ),
    Attack(
        "terminal-injection",
        """
        import fcntl, pty, termios
        refused("/dev/tty", os.open, "/dev/tty", os.O_RDWR)
        for descriptor in (0, 1, 2):
            refused("TIOCSTI", fcntl.ioctl, descriptor, termios.TIOCSTI, b"x")
        master, slave = pty.openpty()
        def inject():
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            for request in (termios.TIOCSTI, termios.TIOCSTI | 1 << 32):
                if libc.ioctl(slave, ctypes.c_long(request), b"x") == 0:
                    os._exit(99)
        if in_child(inject):
            escaped("TIOCSTI")
        """,
    ),
    Attack(
        "rights",
        """
        status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
        for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            if int(status[name], 16):
                escaped(f"{name} {status[name]}")
        if status["NoNewPrivs"].strip() != "1" or status["Seccomp"].strip() != "2":
            escaped((status["NoNewPrivs"], status["Seccomp"]))
        refused("setuid", os.setuid, 0)
        refused("setgid", os.setgid, 0)
        refused("setgroups", os.setgroups, [0])
        refused("nice", os.setpriority, os.PRIO_PROCESS, 0, -5)
        refused("real time", os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(10))
        for name in ("uid_map", "gid_map", "setgroups"):
            refused(name, lambda: os.write(os.open(f"/proc/self/{name}", os.O_WRONLY), b"0 0 1"))
        def lower():
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("-900")
        refused("oom_score_adj", lower)
        """,
    ),
)

PROCESSES = (
    Attack(
        "process-1-and-its-executable",
        """
        for path in ("/proc/1/exe", "/proc/1/mem", "/proc/1/task/1/mem"):
            for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
                refused(path, os.open, path, flags)
        try:
            held = os.open("/proc/1/exe", getattr(os, "O_PATH"))
        except OSError:
            held = -1
        if held >= 0:
            code = refused("the executable, again", os.open, f"/proc/self/fd/{held}", os.O_WRONLY)
            if code == errno.ETXTBSY:
                escaped("/proc/1/exe can be written as soon as it runs no more")
        """,
    ),
    Attack(
        "memory-of-process-1",
        """
        for request in (16, 0x4206):
            refused("ptrace", syscall, "ptrace", request, 1, 0, 0)
        memory = ctypes.create_string_buffer(64)
        local = (ctypes.c_size_t * 2)(ctypes.addressof(memory), 64)
        remote = (ctypes.c_size_t * 2)(0x400000, 64)
        for name in ("process_vm_readv", "process_vm_writev"):
            code = refused(name, syscall, name, 1, ctypes.addressof(local), 1, ctypes.addressof(remote), 1, 0)
            if code == errno.EFAULT:
                escaped(name)
        def descriptor_of_1():
            return syscall("pidfd_getfd", os.pidfd_open(1), 0, 0)
        refused("pidfd_getfd", descriptor_of_1)
        for name in ("environ", "maps", "mem", "auxv"):
            silent(f"/proc/1/{name}")
        for name in ("root", "cwd", "exe", "fd/0"):
            refused(name, os.stat, f"/proc/1/{name}")
        """,
    ),
    Attack(
        "files-of-process-1-that-take-writes",
        """
        for folder, names, files in os.walk("/proc/1"):
            names[:] = [name for name in names if name not in ("net", "fd", "map_files", "cwd", "root")]
            for name in files:
                path = f"{folder}/{name}"
                if not os.path.islink(path) and not os.stat(path).st_mode & 0o002:  # the kernel refuses the write to those
                    refused(path, os.open, path, os.O_WRONLY | os.O_NONBLOCK)
        """,
    ),
    Attack(
        "processes-of-the-host",
        """
        for name in filter(str.isdigit, os.listdir("/proc")):
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read()
            if words.decode(errors="replace") in places["commands"]:
                escaped(words)
        refused("a signal", os.kill, places["pid"], 0)
        """,
    ),
    Attack(
        "signals-to-process-1",
        """
        before = os.stat("/proc/1").st_ctime
        for code in range(1, 65):
            try:
                os.kill(1, code)
            except OSError:
                pass
        time.sleep(0.1)
        """,
        ends=True,
    ),
    Attack("kill-everything", "os.kill(-1, signal.SIGKILL); os.kill(-1, signal.SIGSTOP)", ends=True),
    Attack("stop-everything", "os.kill(-1, signal.SIGSTOP)", ends=True, seconds=1),
    Attack(
        "stop-what-it-runs-under",
        """
        for pid in (os.getppid(), 1):
            os.kill(pid, signal.SIGSTOP)
        """,
        ends=True,
        seconds=1,
    ),
    Attack(
        "descriptors",
        """
        kept = []
        for name in os.listdir("/proc/self/fd"):
            try:
                kept.append((int(name), os.readlink(f"/proc/self/fd/{name}")))
            except OSError:
                pass
        if [pair for pair in kept if pair[0] > 2]:
            escaped(kept)
        """,
        isolated=False,
    ),
    Attack(
        "environment",
        """
        for name, value in os.environ.items():
            if name.endswith(("_KEY", "_TOKEN", "_SECRET")) or name.startswith(("SSH", "AWS", "PYTHON", "LD_", "VIRTUAL")):
                escaped(name)
        """,
        isolated=False,
    ),
)

BOMBS = (
    Attack(
        "fork-bomb",
        """
        end = time.monotonic() + 1
        while time.monotonic() < end:
            try:
                os.fork()
            except OSError:
                time.sleep(0.05)
        """,
        ends=True,
        seconds=10,
    ),
    Attack(
        "all-process-ids",
        """
        children = []
        try:
            for _ in range(5000):
                children.append(subprocess.Popen(["sleep", "1.5"], start_new_session=True))
        except OSError as error:
            if len(children) > places["processes"]:
                escaped(len(children))
        else:
            escaped("no limit")
        """,
        ends=True,
        seconds=30,
    ),
    Attack(
        "memory-bomb",
        """
        blocks = []
        try:
            for _ in range(4096):
                blocks.append(b"x" * (1 << 20))
        except MemoryError:
            blocks.clear()
        else:
            escaped("no limit")
        """,
        ends=True,
        seconds=30,
    ),
    Attack(
        "memory-bomb-of-many",
        """
        for _ in range(24):
            if os.fork() == 0:
                break
        blocks = []
        try:
            while len(blocks) < 128:
                blocks.append(b"x" * (1 << 20))
        except MemoryError:
            pass
        time.sleep(1)
        """,
        ends=True,
        seconds=30,
        slow=True,
    ),
    Attack(
        "shared-memory",
        """
        total = 0
        try:
            with open("/dev/shm/full", "wb") as file:
                while total < 1 << 30:
                    total += file.write(b"x" * (1 << 20))
                    file.flush()
        except OSError:
            pass
        if os.path.exists("/dev/shm/full"):
            os.unlink("/dev/shm/full")
        if total > 200 << 20:
            escaped(total)
        """,
        ends=True,
        seconds=30,
    ),
    Attack(
        "endless-output",
        """
        block = b"x" * 65536
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            os.write(1, block)
        """,
        ends=True,
        seconds=10,
        isolated=False,
    ),
    Attack(
        "output-that-stays-open",
        """
        subprocess.Popen(["sleep", "2"], start_new_session=True)
        print("held", flush=True)
        os._exit(0)
        """,
        isolated=False,
    ),
    Attack(
        "deep-trees-and-long-names",
        """
        os.chdir("/workspace")
        for _ in range(5000):
            os.mkdir("d")
            os.chdir("d")
        for number_ in range(200):
            open(f"{number_:04}" + "n" * 251, "w").close()
        os.chdir("/tmp")
        name = b"\\xff\\n\\t;`'\\"$(touch manyhands-breakout)"
        open(name, "w").close()
        """,
    ),
)

ATTACKS = (*FILES, *NETWORK, *KERNEL, *PROCESSES, *BOMBS)
