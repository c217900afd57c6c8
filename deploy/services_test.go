package deploy

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// bootUnit runs the test in the container and powers it off.
const bootUnit = `[Unit]
Requires=basic.target
After=basic.target
[Service]
Type=oneshot
ExecStart=/bin/bash /opt/test/services.sh
StandardOutput=file:/opt/test/log
StandardError=file:/opt/test/log
ExecStopPost=/bin/sh -c 'journalctl --no-pager -u "scuda*" >/opt/test/journal; systemctl poweroff --no-block'
`

// services boots a container of this machine's /usr with systemd, starts the units there with the programs below
// prefix and those of the pool, and uses them: whether a sandbox lets a server work is seen only in it.
func services(t *testing.T, prefix, pool string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the services need root to start")
	}
	folder := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(folder, name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	read := func(file string) string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	write("services.sh", read("testdata/services.sh"))
	// Nothing of the host is reached: its /usr is read, the rest of the file system and the network are the container's
	// own.
	args := []string{
		"-D", "/", "--volatile=yes", "--private-network", "--register=no", "--keep-unit", "--capability=all",
		"--system-call-filter=bpf perf_event_open landlock_create_ruleset landlock_add_rule landlock_restrict_self",
		"--bind=" + folder + ":/opt/test", "--bind-ro=" + prefix + ":/opt/scuda", "--bind-ro=" + pool + ":/opt/pool",
		"--bind-ro=" + write("boot", bootUnit) + ":/etc/systemd/system/boot.service",
	}
	for unit, from := range map[string]string{
		"scuda.service": prefix + "/deploy/systemd", "scuda-spawner.service": prefix + "/deploy/systemd",
		"scuda-exporter.service": prefix + "/deploy/systemd", "scuda-pool.service": pool + "/lib/systemd/system",
		"scuda-pool-announce.service": pool + "/lib/systemd/system",
	} {
		text := strings.ReplaceAll(read(filepath.Join(from, unit)), "=/usr/bin/scuda-pool", "=/opt/pool/bin/scuda-pool")
		text = strings.ReplaceAll(text, "=/usr/bin/", "=/opt/scuda/bin/")
		args = append(args, fmt.Sprintf("--bind-ro=%s:/etc/systemd/system/%s", write(unit, text), unit))
	}
	args = append(args, "--boot", "systemd.unit=boot.service", "systemd.firstboot=no",
		"systemd.mask=systemd-networkd-wait-online.service", "systemd.mask=systemd-networkd.service")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	container := exec.CommandContext(ctx, "systemd-nspawn", args...)
	container.Cancel = func() error { return container.Process.Signal(os.Interrupt) }
	container.WaitDelay = 10 * time.Second
	if _, err := os.Stat("/sys/fs/cgroup/systemd"); err == nil { // control groups of the first kind
		container.Env = append(os.Environ(), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=0")
	}
	boot, err := container.CombinedOutput()
	log, _ := os.ReadFile(filepath.Join(folder, "log"))
	if log == nil {
		t.Skipf("systemd does not boot in a container here (%v):\n%s", err, boot)
	}
	if !strings.HasSuffix(string(log), "services work\n") {
		t.Errorf("the services do not work (%v):\n%s\n%s", err, log, read(filepath.Join(folder, "journal")))
	}
}
