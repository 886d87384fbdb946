package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/internal/gateway"
)

// An envoyProcess is the gateway of a fleet.
type envoyProcess struct {
	t       *testing.T
	dir     string // where the configuration is
	log     string // the access log
	admin   string // http://ip:port
	gateway string // ip:port, for clients
	// listeners are all that clients can connect to, by name: "gateway", and the
	// routes that a test has added.
	listeners map[string]string
}

// startEnvoy starts Envoy with the files of these options; edit, if given,
// changes the bootstrap first. It ends with the test.
func startEnvoy(t *testing.T, o gateway.Options, edit func(bootstrap tree)) *envoyProcess {
	t.Helper()
	e := &envoyProcess{t: t, dir: t.TempDir()}
	e.log = filepath.Join(e.dir, "access.log")
	bootstrap := e.write(o)
	if edit != nil {
		editFile(t, bootstrap, edit)
	}
	adminFile := filepath.Join(e.dir, "admin")
	var said buffer
	cmd := exec.Command(envoyBinary, "-c", bootstrap, "--concurrency", "1", "--disable-hot-restart",
		"--file-flush-interval-msec", "50", "--admin-address-path", adminFile, "-l", "warning")
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			// It may not have got so far as to open one.
			log, _ := os.ReadFile(e.log)
			t.Logf("Envoy said:\n%s\nIts access log:\n%s", said.String(), log)
		}
	})

	eventually(t, "Envoy is ready", func() bool {
		select {
		case <-ended:
			t.Fatal("Envoy ended by itself")
		default:
		}
		address, err := os.ReadFile(adminFile)
		if err != nil || len(address) == 0 {
			return false
		}
		e.admin = "http://" + string(address)
		return strings.Contains(e.page("/ready"), "LIVE")
	})
	var listeners struct {
		Statuses []struct {
			Name  string
			Local struct {
				Socket envoySocket `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal([]byte(e.page("/listeners?format=json")), &listeners); err != nil {
		t.Fatalf("Envoy's listeners: %v", err)
	}
	e.listeners = map[string]string{}
	for _, l := range listeners.Statuses {
		e.listeners[l.Name] = l.Local.Socket.String()
	}
	if e.gateway = e.listeners["gateway"]; e.gateway == "" {
		t.Fatalf("Envoy listens at %v, want a listener named gateway", e.listeners)
	}
	return e
}

type envoySocket struct {
	Address string `json:"address"`
	Port    int    `json:"port_value"`
}

func (s envoySocket) String() string { return net.JoinHostPort(s.Address, strconv.Itoa(s.Port)) }

// write writes Envoy's files and returns the bootstrap's path. With other
// endpoints than before, a running Envoy takes those over.
func (e *envoyProcess) write(o gateway.Options) (bootstrap string) {
	e.t.Helper()
	o.AccessLog = e.log
	bootstrap, err := gateway.WriteFiles(e.dir, o)
	if err != nil {
		e.t.Fatal(err)
	}
	return bootstrap
}

// page is one of the admin endpoint; empty where it cannot be had.
func (e *envoyProcess) page(path string) string {
	resp, err := http.Get(e.admin + path)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(body)
}

// stat is a counter or a gauge of Envoy's; -1 where it cannot be had.
func (e *envoyProcess) stat(name string) int {
	_, value, _ := strings.Cut(e.page("/stats?filter=^"+name+"$"), ": ")
	n, err := strconv.Atoi(strings.TrimSpace(value))
	if err != nil {
		return -1
	}
	return n
}

// logged waits for the access log's line of a request, by its x-request-id.
func (e *envoyProcess) logged(id string) tree {
	e.t.Helper()
	var found tree
	eventually(e.t, "the access log has the request "+id, func() bool {
		text, err := os.ReadFile(e.log)
		if err != nil {
			return false
		}
		for line := range bytes.Lines(text) {
			var l tree
			if bytes.Contains(line, []byte(id)) && json.Unmarshal(line, &l) == nil && l["request_id"] == id {
				found = l
				return true
			}
		}
		return false
	})
	return found
}

// asking is how many ext_proc streams Envoy has open to the picker.
func (e *envoyProcess) asking() int { return e.stat("cluster.picker.upstream_rq_active") }

// knows reports that Envoy has exactly these endpoints.
func (e *envoyProcess) knows(addresses ...string) bool {
	var page struct {
		Clusters []struct {
			Name  string `json:"name"`
			Hosts []struct {
				Address struct {
					Socket envoySocket `json:"socket_address"`
				} `json:"address"`
			} `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	if json.Unmarshal([]byte(e.page("/clusters?format=json")), &page) != nil {
		return false
	}
	var hosts []string
	for _, c := range page.Clusters {
		if c.Name != "pool" {
			continue
		}
		for _, h := range c.Hosts {
			hosts = append(hosts, h.Address.Socket.String())
		}
	}
	slices.Sort(hosts)
	want := slices.Clone(addresses)
	slices.Sort(want)
	return slices.Equal(hosts, want)
}

func editFile(t *testing.T, path string, edit func(tree)) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var doc tree
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	edit(doc)
	if text, err = yaml.Marshal(doc); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// listener is the part of a bootstrap that clients connect to.
func listener(bootstrap tree) tree {
	return bootstrap["static_resources"].(tree)["listeners"].([]any)[0].(tree)
}

// connectionManager is the part of a listener that handles HTTP.
func connectionManager(listener tree) tree {
	chain := listener["filter_chains"].([]any)[0].(tree)
	return chain["filters"].([]any)[0].(tree)["typed_config"].(tree)
}

// externalProcessor is the part of a listener that asks the picker.
func externalProcessor(listener tree) tree {
	for _, filter := range connectionManager(listener)["http_filters"].([]any) {
		if f := filter.(tree); f["name"] == "envoy.filters.http.ext_proc" {
			return f["typed_config"].(tree)
		}
	}
	return nil
}

// processingMode is how the picker is shown requests and responses.
func processingMode(listener tree) tree {
	return externalProcessor(listener)["processing_mode"].(tree)
}

// routeTo is the action of a listener's only route.
func routeTo(listener tree) tree {
	host := connectionManager(listener)["route_config"].(tree)["virtual_hosts"].([]any)[0].(tree)
	return host["routes"].([]any)[0].(tree)["route"].(tree)
}

// stripNothing has a gateway let pass what clients send under the names of the
// gateway, the router and the picker.
func stripNothing(listener tree) {
	delete(connectionManager(listener), "early_header_mutation_extensions")
}

// copyToMetadata puts a filter in front of the picker's that moves headers into
// dynamic metadata: each pair is a header and a key.
func copyToMetadata(listener tree, name, namespace string, pairs ...[2]string) {
	var rules []any
	for _, p := range pairs {
		rules = append(rules, tree{
			"header":            p[0],
			"on_header_present": tree{"metadata_namespace": namespace, "key": p[1], "type": "STRING"},
			"remove":            true,
		})
	}
	insertFilter(listener, name, "envoy.extensions.filters.http.header_to_metadata.v3.Config", tree{"request_rules": rules})
}

// setMetadata puts a filter in front of the picker's that says the same of each
// request.
func setMetadata(listener tree, name, namespace string, value tree) {
	insertFilter(listener, name, "envoy.extensions.filters.http.set_metadata.v3.Config", tree{
		"metadata": []any{tree{"metadata_namespace": namespace, "value": value}},
	})
}

// setHeaders puts a filter in front of the picker's that replaces headers: each
// pair is a name and a value.
func setHeaders(listener tree, name string, pairs ...[2]string) {
	var mutations []any
	for _, p := range pairs {
		mutations = append(mutations, tree{"append": tree{
			"header": tree{"key": p[0], "value": p[1]}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
		}})
	}
	insertFilter(listener, name, "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation", tree{
		"mutations": tree{"request_mutations": mutations},
	})
}

// insertFilter puts a filter in front of the picker's.
func insertFilter(listener tree, name, kind string, config tree) {
	config["@type"] = "type.googleapis.com/" + kind
	manager := connectionManager(listener)
	manager["http_filters"] = append([]any{tree{"name": name, "typed_config": config}}, manager["http_filters"].([]any)...)
}
