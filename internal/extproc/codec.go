package extproc

import (
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// codec is how messages get in and out of gRPC. It speaks protobuf, and a gateway
// sees no difference; what it saves is work. The generic decoder finds its way
// through a message by reflection, allocates each header and each value by itself
// and copies bodies once more. That was an eighth of what a request cost the
// picker, and encoding the answers a twentieth; the budget picker-cycle of
// test/budgets holds what is left.
//
// codec_decode.go and codec_encode.go know the messages of a usual exchange, field
// by field. Both may decline: a message that is malformed, or has anything that
// they do not know or expect, goes to the generic codec as a whole, and so does
// every other type (gRPC's health service is on the same server). So protobuf
// alone says what is valid, and errors are its own. Tests hold that
//
//   - decoding accepts what proto.Unmarshal accepts, with an equal result:
//     FuzzDecode, TestDecodingIsWhatProtobufDoes;
//   - what is decoded does not depend on gRPC's buffers, which are used again:
//     TestDecodedMessagesOutliveTheBuffersOfGRPC;
//   - a part of a body does not keep more than about twice its length in memory:
//     TestSmallBodiesDoNotKeepLargeMessages;
//   - answers are read by proto.Unmarshal as equal messages, whatever fields the
//     protocol has: TestEncodingIsReadAsTheSameMessage,
//     TestEncodingLosesNoFieldOfAnAnswer;
//   - what gateways usually send and get is not left to the generic codec:
//     TestUsualMessagesAreNotLeftToTheGenericCodec.
//
// A codec may be used by any number of goroutines.
type codec struct {
	usual encoding.CodecV2
	decoder
}

var _ encoding.CodecV2 = (*codec)(nil)

func newCodec() *codec {
	return &codec{usual: encoding.GetCodecV2(protocodec.Name), decoder: newDecoder()}
}

// Name is protobuf's.
func (c *codec) Name() string { return protocodec.Name }

// Unmarshal decodes a message. What gateways send is copied, once, out of gRPC's
// buffers into memory that nothing else uses, and that the result refers to.
func (c *codec) Unmarshal(data mem.BufferSlice, v any) error {
	msg, ok := v.(*extprocv3.ProcessingRequest)
	if !ok {
		return c.usual.Unmarshal(data, v)
	}
	b := data.Materialize()
	if c.decode(b, msg) {
		return nil
	}
	return proto.Unmarshal(b, msg)
}

// Marshal encodes a message.
func (c *codec) Marshal(v any) (mem.BufferSlice, error) {
	if msg, ok := v.(*extprocv3.ProcessingResponse); ok {
		if data, ok := encode(msg); ok {
			return data, nil
		}
	}
	return c.usual.Marshal(v)
}
