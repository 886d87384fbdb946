package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-dev/berth/internal/policy"
)

// printEndSignals makes the test binary print endSignals as a process of its own
// does, before anything else has touched signals.
const printEndSignals = "BERTH_TEST_PRINT_END_SIGNALS"

func TestMain(m *testing.M) {
	if os.Getenv(printEndSignals) != "" {
		fmt.Println(endSignals())
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestAPickerThatIsStartedUnderNohupOutlivesTheTerminal(t *testing.T) {
	started := func(script string) string {
		cmd := exec.Command("sh", "-c", script+`exec "$0"`, os.Args[0])
		cmd.Env = append(os.Environ(), printEndSignals+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if got := started("trap '' HUP; "); got != "[interrupt terminated]" {
		t.Errorf("with SIGHUP ignored the picker ends on %s, want an interrupt and SIGTERM alone", got)
	}
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("this test itself is to outlive the terminal: what it starts ignores SIGHUP")
	}
	if got := started(""); got != "[interrupt terminated hangup]" {
		t.Errorf("the picker ends on %s, want SIGHUP among them", got)
	}
}

// execute runs berth-epp in this process.
func execute(ctx context.Context, args ...string) (string, error) {
	cmd := command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

func TestWrongCommandLinesAreUsageErrors(t *testing.T) {
	tests := []struct {
		args []string
		want string
	}{
		{nil, "--config: missing"},
		{[]string{"--config", ""}, "--config: missing"},
		{[]string{"--config", "berth.yaml", "--log-level", "loud"}, `--log-level: "loud": must be debug, info, warn or error`},
		// Levels above error would end the picker, or hide that it fails.
		{[]string{"--config", "berth.yaml", "--log-level", "dpanic"}, `--log-level: "dpanic": must be debug, info, warn or error`},
		{[]string{"--config", "berth.yaml", "--log-level", "panic"}, `--log-level: "panic": must be debug, info, warn or error`},
		{[]string{"--config", "berth.yaml", "--log-level", "FATAL"}, `--log-level: "FATAL": must be debug, info, warn or error`},
		{[]string{"--config", "berth.yaml", "--extproc-tls", ""}, `--extproc-tls: "": must be off, self-signed or a directory`},
		{[]string{"--config"}, "--config"},
		{[]string{"--verbose"}, "--verbose"},
		{[]string{"berth.yaml"}, "berth.yaml"},
	}
	for _, tt := range tests {
		_, err := execute(t.Context(), tt.args...)
		var usage usageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v (usage error: %t), want %q", tt.args, err, errors.As(err, &usage), tt.want)
		}
	}
}

func TestVersionAndHelpAreNoErrors(t *testing.T) {
	if out, err := execute(t.Context(), "--version"); err != nil || !strings.Contains(out, runtime.Version()) {
		t.Errorf("--version: %v, %q", err, out)
	}
	out, err := execute(t.Context(), "--help")
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{
		"--config FILE", "--log-level LEVEL", "--extproc-address", ":9002", "--extproc-tls off|self-signed|DIR", "--health-address", ":9003",
		"--metrics-address", ":9090", "--admin-address", "127.0.0.1:9091",
	} {
		if !strings.Contains(out, flag) {
			t.Errorf("help does not name %s", flag)
		}
	}
}

func TestAConfigurationThatDoesNotLoadNamesTheField(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.yaml")
	_, err := execute(t.Context(), "--config", path)
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("no such file: %v", err)
	}
	text := "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- {type: magic}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = execute(t.Context(), "--config", path)
	var refused *policy.Error
	if !errors.As(err, &refused) || refused.Line != 4 || !strings.Contains(err.Error(), "magic") {
		t.Errorf("an unknown plugin: %v", err)
	}
}

// Two profiles with nothing to choose between them, and other configurations
// that would start and fail every request, do not start.
func TestConfigurationsThatWouldFailEveryRequestDoNotStart(t *testing.T) {
	const head = "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n" +
		"- {type: queue-depth}\n- {type: berth-picker}\n- {name: second, type: berth-picker}\n"
	const profile = "- name: %s\n  plugins: [{pluginRef: queue-depth, weight: 1}, {pluginRef: berth-picker}]\n"
	const pool = "---\napiVersion: berth.dev/v1alpha1\nkind: StaticPool\nmetadata: {namespace: l, name: p}\n" +
		"endpoints: [{name: r1, address: 127.0.0.1, port: 19101}]\n"
	for name, profiles := range map[string]string{
		"two profiles":                 "schedulingProfiles:\n" + fmt.Sprintf(profile, "a") + fmt.Sprintf(profile, "b"),
		"two pickers":                  "schedulingProfiles:\n- name: a\n  plugins: [{pluginRef: queue-depth, weight: 1}, {pluginRef: berth-picker}, {pluginRef: second}]\n",
		"a plugin that does not exist": "schedulingProfiles:\n- name: a\n  plugins: [{pluginRef: nobody, weight: 1}, {pluginRef: berth-picker}]\n",
	} {
		path := filepath.Join(t.TempDir(), "berth.yaml")
		if err := os.WriteFile(path, []byte(head+profiles+pool), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := execute(t.Context(), "--config", path, "--extproc-address", "127.0.0.1:0", "--health-address", "127.0.0.1:0",
			"--metrics-address", "127.0.0.1:0", "--admin-address", "127.0.0.1:0")
		var refused *policy.Error
		if !errors.As(err, &refused) || !strings.HasPrefix(refused.Field, "schedulingProfiles") {
			t.Errorf("%s: %v, want an error that names a field of schedulingProfiles", name, err)
		}
	}
}

func TestAnInterruptStopsAPickerWithoutAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.yaml")
	text := "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n" +
		"plugins: [{type: queue-depth}, {type: berth-picker}]\n" +
		"schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-depth, weight: 1}, {pluginRef: berth-picker}]}]\n" +
		"---\napiVersion: berth.dev/v1alpha1\nkind: StaticPool\nmetadata: {namespace: l, name: p}\n" +
		"endpoints: [{name: r1, address: 127.0.0.1, port: 19101}]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	args := []string{"--config", path, "--log-level", "error"}
	for _, flag := range []string{"--extproc-address", "--health-address", "--metrics-address", "--admin-address"} {
		args = append(args, flag, "127.0.0.1:0")
	}
	if _, err := execute(ctx, args...); err != nil {
		t.Errorf("an interrupted picker: %v", err)
	}

	if _, err := execute(ctx, append(args, "--extproc-tls", "self-signed")...); err != nil {
		t.Errorf("an interrupted picker with TLS: %v", err)
	}
	empty := t.TempDir()
	if _, err := execute(ctx, append(args, "--extproc-tls", empty)...); err == nil ||
		!strings.Contains(err.Error(), "--extproc-tls "+empty+": "+filepath.Join(empty, "tls.crt")+": cannot be read") {
		t.Errorf("no certificate: %v, want a failure that names the flag and the file", err)
	}

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, err = execute(t.Context(), append(args, "--admin-address", taken.Addr().String())...)
	var usage usageError
	if err == nil || errors.As(err, &usage) || !strings.Contains(err.Error(), "--admin-address") {
		t.Errorf("a port that is taken: %v, want a failure that names the flag", err)
	}
}
