package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/gateway"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/plugins"
)

func gatewayCommand(out *output) *cobra.Command {
	var (
		opts     gateway.Options
		kind     string
		dir      string
		poolFile string
	)
	cmd := &cobra.Command{
		Use:   "gateway FILE",
		Short: "Write the Envoy configuration that fits a policy",
		Long: "gateway prints an Envoy bootstrap that fits the configuration FILE: it fails closed, walks the\n" +
			"picker's fallbacks in order, and strips headers that clients must not set. With --dir it writes the\n" +
			"bootstrap and a file of endpoints there; run it again after a change of the pool, and a running\n" +
			"Envoy takes the endpoints over.",
		Args: exactArgs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, _, err := policy.Load(args[0], plugins.Catalog{})
			if err != nil {
				return usageError{fileError{err}}
			}
			members, err := poolOf(p, poolFile)
			if err != nil {
				return usageError{fileError{err}}
			}
			opts.Kind = gateway.Kind(kind)
			opts.Fallbacks = p.Gateway.Fallbacks
			opts.RequestTrailers = p.Gateway.RequestTrailers == v1alpha1.TrailersPass
			opts.Endpoints = gatewayEndpoints(members)
			if dir != "" {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					return usageError{fmt.Errorf("--dir: %w", err)}
				}
				path, err := gateway.WriteFiles(dir, opts)
				if err != nil {
					return usageError{asWritten(err)}
				}
				doc := map[string]string{"bootstrap": path}
				return out.print(cmd.OutOrStdout(), doc, func(w io.Writer) error {
					_, err := fmt.Fprintf(w, "wrote %s\nrun: envoy -c %s\n", path, path)
					return err
				})
			}
			text, err := gateway.Bootstrap(opts)
			if err != nil {
				return usageError{asWritten(err)}
			}
			if out.format == "json" {
				if text, err = yaml.YAMLToJSON(text); err != nil {
					return err
				}
				text = append(text, '\n')
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&kind, "kind", string(gateway.OverrideHost), "`KIND` of destination: override-host (walks fallbacks) or original-dst (one address)")
	f.StringVar(&dir, "dir", "", "`DIRECTORY` to write envoy.yaml and the endpoints file to, instead of standard output")
	f.StringVar(&poolFile, "pool", "", "pool `FILE` to take endpoints from, instead of the one that the configuration names")
	f.StringVar(&opts.ListenAddress, "listen", "0.0.0.0:8080", "`ADDRESS` that clients connect to")
	f.StringVar(&opts.AdminAddress, "admin", "127.0.0.1:9901", "`ADDRESS` of Envoy's own admin endpoint")
	f.StringVar(&opts.PickerAddress, "picker", "127.0.0.1:9002", "`ADDRESS` of the picker's ext_proc listener")
	f.StringVar(&opts.PickerTLS, "picker-tls", gateway.PickerTLSOff, "TLS of that listener, `off|unverified|FILE`: none, by any certificate, or verified by the authorities in FILE")
	f.StringVar(&opts.AccessLog, "access-log", "", "`FILE` of the access log; standard output if it is empty")
	return cmd
}

// flagOptions are the gateway's options that flags set, and fileOptions those
// from the configuration and the pool, by what the user wrote.
var (
	flagOptions = map[string]string{
		"Kind":          "--kind",
		"ListenAddress": "--listen",
		"AdminAddress":  "--admin",
		"PickerAddress": "--picker",
		"PickerTLS":     "--picker-tls",
		"AccessLog":     "--access-log",
		"EndpointsFile": "--dir",
	}
	fileOptions = map[string]string{
		"Fallbacks":       "gateway.fallbacks",
		"RequestTrailers": "gateway.requestTrailers",
		"Endpoints":       "endpoints",
		"Name":            "name",
		"Address":         "address",
	}
)

// asWritten is an error about options as one about flags and fields: all of it,
// joined.
func asWritten(err error) error {
	var written []error
	for _, e := range unjoin(err) {
		var refused *gateway.Error
		if !errors.As(e, &refused) {
			written = append(written, e)
			continue
		}
		value := refused.Value
		if _, flag := flagOptions[refused.Field]; flag {
			value = strconv.Quote(value)
		}
		written = append(written, fmt.Errorf("%s: %s: %s", optionNames(refused.Field), value, optionNames(refused.Allowed)))
	}
	return errors.Join(written...)
}

var identifier = regexp.MustCompile(`[A-Z]\w+`)

// optionNames says Go's names of options, inside a text, as the user wrote them.
func optionNames(text string) string {
	// The configuration has a word for what is true or false as an option.
	text = strings.ReplaceAll(text, "RequestTrailers true", "RequestTrailers "+string(v1alpha1.TrailersPass))
	return identifier.ReplaceAllStringFunc(text, func(name string) string {
		if flag, ok := flagOptions[name]; ok {
			return flag
		}
		if field, ok := fileOptions[name]; ok {
			return field
		}
		return name
	})
}

func gatewayEndpoints(p *policy.Pool) []gateway.Endpoint {
	if p == nil {
		return nil
	}
	endpoints := make([]gateway.Endpoint, len(p.Endpoints))
	for i, e := range p.Endpoints {
		endpoints[i] = gateway.Endpoint{Name: e.Name, Address: e.Address}
	}
	return endpoints
}
