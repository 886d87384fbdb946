package enginesim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
)

// maxBody is the largest body that is accepted, in bytes.
const maxBody = 64 << 20

// serve is the handler of all paths; the package comment has the table.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	p := s.process
	if p != nil {
		s.active.Add(1)
	}
	s.mu.Unlock()
	if p == nil {
		abort()
	}
	defer s.active.Done()

	w.Header().Set("X-Sim-Engine", s.cfg.Name)
	switch r.Method + " " + r.URL.Path {
	case "POST /v1/chat/completions":
		s.infer(w, r, p, true)
	case "POST /v1/completions":
		s.infer(w, r, p, false)
	case "GET /v1/models":
		s.models(w, p)
	case "GET /health":
		w.WriteHeader(http.StatusOK)
	case "GET /version":
		writeJSON(w, http.StatusOK, map[string]string{"version": s.cfg.Dialect.Version()})
	case "GET /sim/requests":
		writeJSON(w, http.StatusOK, s.arrivals.read())
	case "GET /sim/faults":
		writeJSON(w, http.StatusOK, p.currentFaults())
	case "POST /sim/faults":
		var f Faults
		set(w, r, &f, func() error { return p.setFaults(f) })
	case "DELETE /sim/faults":
		answerSet(w, Faults{}, p.setFaults(Faults{}))
	case "GET /sim/load":
		writeJSON(w, http.StatusOK, p.currentLoad())
	case "POST /sim/load":
		var l Load
		set(w, r, &l, func() error { return p.setLoad(l) })
	case "DELETE /sim/load":
		answerSet(w, Load{}, p.setLoad(Load{}))
	case "POST /sim/die":
		s.Die()
		abort()
	case "POST /sim/restart":
		conn, _ := r.Context().Value(connKey{}).(net.Conn)
		answerSet(w, map[string]bool{"restarted": true}, s.restart(conn))
	default:
		if r.Method == http.MethodGet && s.cfg.Dialect.HasPage(r.URL.Path) {
			s.page(w, r, p)
		} else {
			s.other(w, r)
		}
	}
}

// abort cuts the connection without an orderly end of the response. It is how net/http lets a handler do so.
func abort() { panic(http.ErrAbortHandler) }

func (s *Server) infer(w http.ResponseWriter, r *http.Request, p *process, chat bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		var tooLarge *http.MaxBytesError
		if !errors.As(err, &tooLarge) {
			abort()
		}
		(&apiError{status: http.StatusRequestEntityTooLarge, kind: "BadRequestError",
			message: fmt.Sprintf("body: larger than %d bytes", maxBody)}).write(w)
		return
	}
	s.arrivals.inference(r, body)
	if status := p.currentFaults().RefuseStatus; status != 0 {
		(&apiError{status: status, kind: "InternalServerError", message: "refused by refuseStatus"}).write(w)
		return
	}
	inf, bad := readInference(body, chat, s.cfg)
	if bad != nil {
		bad.write(w)
		return
	}
	c, err := p.submit(inf.request(p.newID(), s.cfg))
	if err != nil {
		badRequest("", "%v", err).write(w)
		return
	}
	defer p.leave(c)

	id := r.Header.Get("X-Request-Id")
	if id == "" {
		id = strings.ReplaceAll(uuid.NewString(), "-", "")
	}
	a := newAnswer(inf, id, s.cfg.Clock.Now())
	if inf.stream {
		serveStream(w, r, p, c, a)
	} else {
		serveWhole(w, r, p, c, a)
	}
}

func serveWhole(w http.ResponseWriter, r *http.Request, p *process, c *call, a *answer) {
	for {
		now, err := p.await(r.Context(), c)
		if err != nil || now.drop {
			abort()
		}
		if now.ended {
			a.whole(w, now)
			return
		}
	}
}

func serveStream(w http.ResponseWriter, r *http.Request, p *process, c *call, a *answer) {
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	// As with vLLM, the status is out before there is a token.
	if out.Flush() != nil {
		abort()
	}
	events := &stream{answer: a, w: w}
	for {
		now, err := p.await(r.Context(), c)
		if err != nil {
			abort()
		}
		if now.drop {
			now.ended = false
			now.generated = max(1, events.sent)
		}
		err = events.tokens(now)
		if now.ended && err == nil {
			err = events.end(now)
		}
		if err != nil || out.Flush() != nil || now.drop {
			abort()
		}
		if now.ended {
			return
		}
	}
}

func (s *Server) models(w http.ResponseWriter, p *process) {
	type card struct {
		ID          string  `json:"id"`
		Object      string  `json:"object"`
		Created     int64   `json:"created"`
		OwnedBy     string  `json:"owned_by"`
		Root        string  `json:"root"`
		Parent      *string `json:"parent"`
		MaxModelLen int     `json:"max_model_len"`
	}
	var cards []card
	for _, id := range s.cfg.Models {
		cards = append(cards, card{ID: id, Object: "model", Created: p.started.Unix(), OwnedBy: "vllm", Root: s.cfg.Root,
			MaxModelLen: s.cfg.MaxModelLen})
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": cards})
}

func (s *Server) page(w http.ResponseWriter, r *http.Request, p *process) {
	faults := p.currentFaults()
	var wait <-chan time.Time // never, for PageHang
	if faults.PageHang || faults.PageDelay > 0 {
		if !faults.PageHang {
			reached, stop := s.cfg.Clock.At(s.cfg.Clock.Now().Add(time.Duration(faults.PageDelay)))
			defer stop()
			wait = reached
		}
		select {
		case <-wait:
		case <-r.Context().Done():
			abort()
		case <-p.done:
			abort()
		}
	}
	if faults.PageStatus != 0 && faults.PageStatus != http.StatusOK {
		w.WriteHeader(faults.PageStatus)
		return
	}
	page := s.cfg.Dialect.Page(r.URL.Path, p.state())
	w.Header().Set("Content-Type", page.ContentType)
	_, _ = w.Write(page.Body)
}

func (s *Server) other(w http.ResponseWriter, r *http.Request) {
	s.arrivals.other()
	// The body is read so that the connection can be used again; what it says does not matter.
	_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBody))
	writeJSON(w, http.StatusOK, map[string]string{"path": r.URL.Path})
}

// set decodes a body strictly into value, applies it and answers with it.
func set(w http.ResponseWriter, r *http.Request, value any, apply func() error) {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16))
	d.DisallowUnknownFields()
	err := d.Decode(value)
	if err == nil && d.More() {
		err = errors.New("body: more than one JSON value")
	}
	if err == nil {
		err = apply()
	}
	answerSet(w, value, err)
}

func answerSet(w http.ResponseWriter, value any, err error) {
	if err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
		return
	}
	writeJSON(w, http.StatusOK, value)
}
