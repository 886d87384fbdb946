package engine

import (
	"fmt"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

// Pod names a pod: namespace/name.
type Pod string

// anyPod stands for a page that is of one replica.
const anyPod Pod = ""

// has reports that a series is of the pod. One that does not say whose it is
// belongs to nobody.
func (pod Pod) has(k *known) bool {
	return pod == anyPod || k.pod == pod
}

func podOf(p *Profile, k *known) Pod {
	if !p.exporter {
		return anyPod
	}
	namespace, name := k.labels.Get(p.labels.namespace), k.labels.Get(p.labels.pod)
	if namespace == "" || name == "" || strings.Contains(namespace, "/") || strings.Contains(name, "/") {
		return anyPod
	}
	return Pod(namespace + "/" + name)
}

// maxPods bounds the pods of one exporter's page: those of one node.
const maxPods = 512

// Readings are one reading for each field.
type Readings [telemetry.NumFields]telemetry.Reading

// ReadPods turns an exporter's page into readings for each pod on it. histories
// are those of its pods, and follow the page: a pod that is gone is forgotten.
// from is what the readings call their page; empty is its path. The readings live
// at least for lease. Errors are those of Read.
func (p *Profile) ReadPods(page []byte, from string, at telemetry.Instant, lease time.Duration, histories map[Pod]*History) (map[Pod]*Readings, error) {
	sc := p.scratch.Get().(*scratch)
	defer p.scratch.Put(sc)
	defer sc.release()
	if err := p.scan(page, sc, true); err != nil {
		return nil, err
	}
	pods := map[Pod]*Readings{}
	for i := range sc.samples {
		pod := sc.samples[i].pod
		if pod == anyPod || pods[pod] != nil {
			continue
		}
		if pods[pod] = (&Readings{}); len(pods) > maxPods {
			return nil, fmt.Errorf("%w: more than %d pods", ErrTooLarge, maxPods)
		}
	}
	for pod := range histories {
		if pods[pod] == nil {
			delete(histories, pod)
		}
	}
	for pod, readings := range pods {
		if histories[pod] == nil {
			histories[pod] = &History{}
		}
		histories[pod].holdTo(p)
		e := evaluation{profile: p, scratch: sc, in: Input{At: at, Path: from, History: histories[pod]}, counting: true, pod: pod}
		e.readAll((*[telemetry.NumFields]telemetry.Reading)(readings))
		for f := range readings {
			if r := &readings[f]; r.Recorded == telemetry.Fresh {
				r.ExpiresAt = max(r.ExpiresAt, at.Add(lease))
			}
		}
	}
	return pods, nil
}

// Join adds what an exporter says of a replica's pod to what its engine says of
// itself. The engine comes first, for each field. Only the owner of a snapshot
// that nobody else has seen may call it.
func Join(s *telemetry.Snapshot, pod *Readings) {
	for f := range pod {
		own, other := &s.Readings[f], &pod[f]
		if other.Recorded == telemetry.Missing && other.Support == telemetry.SupportUnknown {
			continue
		}
		if own.Recorded == telemetry.Missing && own.Support != telemetry.Supported {
			*own = *other
		}
	}
	joinEnergy(s)
}

// joinEnergy estimates the energy of a token where an exporter knows the power
// and the engine the tokens. The two are not of the same moment.
func joinEnergy(s *telemetry.Snapshot) {
	power, tokens := &s.Readings[telemetry.Power], &s.Readings[telemetry.GenerationThroughput]
	own := &s.Readings[telemetry.EnergyPerToken]
	if own.Recorded != telemetry.Missing || own.Support == telemetry.Supported ||
		power.Recorded != telemetry.Fresh || tokens.Recorded != telemetry.Fresh {
		return
	}
	if tokens.Value <= 0 || !telemetry.EnergyPerToken.Possible(power.Value/tokens.Value) {
		*own = telemetry.Reading{Support: telemetry.Supported, Detail: reasons("no recent data: no token was generated")}
		return
	}
	*own = telemetry.Reading{
		Value:      power.Value / tokens.Value,
		ObservedAt: min(power.ObservedAt, tokens.ObservedAt),
		ExpiresAt:  min(power.ExpiresAt, tokens.ExpiresAt),
		Quality:    min(doubtful, power.Quality, tokens.Quality),
		Support:    telemetry.Supported,
		Recorded:   telemetry.Fresh,
		Provenance: telemetry.Modeled,
		Detail: &telemetry.Detail{
			Source:  &telemetry.Source{Metric: "power, generationThroughput", Rule: "divided"},
			Reasons: []string{"estimated from the power of a moment and the tokens of a window"},
		},
	}
}
