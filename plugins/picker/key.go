package picker

import (
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"
)

// stateKey is where a scheduling cycle keeps its request key.
const stateKey plugin.StateKey = "berth.dev/request-key"

// requestKey is the request key as GIE's cycle state holds it.
type requestKey uint64

// Clone returns the same value.
func (k requestKey) Clone() plugin.StateData { return k }

// WriteKey sets the request key that ties break by in this scheduling cycle. A
// host whose keys are not hashes of the request ID calls it before the profile
// runs.
func WriteKey(state *scheduling.CycleState, key uint64) { state.Write(stateKey, requestKey(key)) }

func readKey(state *scheduling.CycleState) (uint64, bool) {
	key, err := scheduling.ReadCycleStateKey[requestKey](state, stateKey)
	return uint64(key), err == nil
}
