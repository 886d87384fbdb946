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
		router   gateway.Router
		mapped   []string
	)
	cmd := &cobra.Command{
		Use:   "gateway FILE",
		Short: "Write the Envoy configuration that fits a policy",
		Long: "gateway prints an Envoy bootstrap that fits the configuration FILE: it fails closed, walks the\n" +
			"picker's fallbacks in order, and strips headers that clients must not set. With --dir it writes the\n" +
			"bootstrap and a file of endpoints there; run it again after a change of the pool, and a running\n" +
			"Envoy takes the endpoints over. A file there that was edited since, or that something else wrote,\n" +
			"is not replaced without --force.\n\n" +
			"With --semantic-router the gateway asks that router before the picker, and makes what it sets the\n" +
			"routing intent: x-selected-model is the logical model, and each --decision-header another part.",
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
			opts.SignedIntents = p.Intent.Keys != nil
			opts.Endpoints = gatewayEndpoints(members)
			if err := routerOptions(cmd, &opts, router, mapped, p); err != nil {
				return usageError{err}
			}
			if opts.Overwrite && dir == "" {
				return usageError{errors.New("--force: needs --dir")}
			}
			if dir != "" {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					return usageError{fmt.Errorf("--dir: %w", err)}
				}
				path, err := gateway.WriteFiles(dir, opts)
				switch {
				case errors.Is(err, gateway.ErrEdited):
					return usageError{fmt.Errorf("%w; --force replaces it", err)}
				case err != nil:
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
	f.BoolVar(&opts.Overwrite, "force", false, "with --dir, replace files that were edited, or that something else wrote")
	f.StringVar(&poolFile, "pool", "", "pool `FILE` to take endpoints from, instead of the one that the configuration names")
	f.StringVar(&opts.ListenAddress, "listen", "0.0.0.0:8080", "`ADDRESS` that clients connect to")
	f.StringVar(&opts.AdminAddress, "admin", "127.0.0.1:9901", "`ADDRESS` of Envoy's own admin endpoint")
	f.StringVar(&opts.PickerAddress, "picker", "127.0.0.1:9002", "`ADDRESS` of the picker's ext_proc listener")
	f.StringVar(&opts.PickerTLS, "picker-tls", gateway.PickerTLSOff, "TLS of that listener, `off|unverified|FILE`: none, by any certificate, or verified by the authorities in FILE")
	f.StringVar(&router.Address, routerFlag, "", "`ADDRESS` of a semantic router's ext_proc listener; none if it is empty")
	f.StringVar(&router.TLS, routerTLSFlag, gateway.PickerTLSOff, "TLS of that listener, `off|unverified|FILE`, as --picker-tls")
	f.StringArrayVar(&mapped, decisionHeaderFlag, nil, "`NAME=KEY` of a header that the router sets and of the intent's flat key that it is, such as\n"+
		"x-residency=requirement.residency.berth.dev/residency; may be repeated")
	f.StringVar(&opts.AccessLog, "access-log", "", "`FILE` of the access log; standard output if it is empty")
	return cmd
}

// Flags about the semantic router.
const (
	routerFlag         = "semantic-router"
	routerTLSFlag      = "semantic-router-tls"
	decisionHeaderFlag = "decision-header"
)

// routerOptions adds the semantic router that flags tell of, if they do.
func routerOptions(cmd *cobra.Command, opts *gateway.Options, router gateway.Router, mapped []string, p *policy.Policy) error {
	if router.Address == "" {
		for _, name := range []string{routerTLSFlag, decisionHeaderFlag} {
			if cmd.Flags().Changed(name) {
				return fmt.Errorf("--%s: needs --%s", name, routerFlag)
			}
		}
		return nil
	}
	for _, m := range mapped {
		header, key, found := strings.Cut(m, "=")
		if !found {
			return fmt.Errorf("--%s: %q: must be NAME=KEY", decisionHeaderFlag, m)
		}
		router.DecisionHeaders = append(router.DecisionHeaders, gateway.HeaderMapping{Header: header, Key: key})
	}
	opts.Router = &router
	// The router reads whole bodies, so the gateway holds what the picker takes.
	opts.BodyBufferLimit = p.Limits.Body
	return nil
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
		"Overwrite":     "--force",

		"Router":                 "--" + routerFlag,
		"Router.Address":         "--" + routerFlag,
		"Router.TLS":             "--" + routerTLSFlag,
		"Router.DecisionHeaders": "--" + decisionHeaderFlag,
	}
	fileOptions = map[string]string{
		"Fallbacks":       "gateway.fallbacks",
		"RequestTrailers": "gateway.requestTrailers",
		"SignedIntents":   "intent.signedHeader",
		"Endpoints":       "endpoints",
		"Name":            "name",
		"Address":         "address",
		"Header":          "name",
		"Key":             "key",
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
		if option, _, _ := strings.Cut(refused.Field, "["); flagOptions[option] != "" {
			value = strconv.Quote(value)
		}
		written = append(written, fmt.Errorf("%s: %s: %s", optionNames(refused.Field), value, optionNames(refused.Allowed)))
	}
	return errors.Join(written...)
}

// identifier is an option, or a field of one that is a struct.
var identifier = regexp.MustCompile(`\b[A-Z]\w+(\.[A-Z]\w+)?`)

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
