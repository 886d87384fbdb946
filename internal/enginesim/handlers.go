package enginesim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/internal/enginemodel"
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
		page, ok := s.pages[r.URL.Path]
		switch {
		case r.Method == http.MethodGet && ok:
			s.page(w, r, p, page)
		case r.Method == http.MethodGet && slices.Contains(s.absent, r.URL.Path):
			absent().write(w)
		default:
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
	c, err := p.submit(inf.request(p.newID(), s.cfg), inf.stream)
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

func (s *Server) page(w http.ResponseWriter, r *http.Request, p *process, page Page) {
	var faults Faults
	if page.Telemetry {
		faults = p.currentFaults()
		s.delay(r, p, faults)
	}
	if page.Generates && !s.generates(r, p) {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if page.Drains {
		s.arrivals.drained()
	}
	if faults.PageStatus != 0 && faults.PageStatus != http.StatusOK {
		w.WriteHeader(faults.PageStatus)
		return
	}
	content := page.Make(p.state(page))
	if page.Negotiates {
		content = negotiated(content, strings.Join(r.Header.Values("Accept"), ","))
	}
	if page.Telemetry {
		content = faults.Page.spoil(content)
		if faults.Page.Redirect != "" {
			w.Header().Set("Location", faults.Page.Redirect)
		}
		if t := faults.Page.Truncate; t != nil && t.Bytes < len(content.Body) {
			content.truncated(w, *t)
			return
		}
	}
	content.write(w)
}

// delay waits for as long as the page of telemetry is meant to wait.
func (s *Server) delay(r *http.Request, p *process, f Faults) {
	var wait <-chan time.Time // never, for PageHang
	switch {
	case f.PageHang:
	case f.PageDelay > 0:
		reached, stop := s.cfg.Clock.At(s.cfg.Clock.Now().Add(time.Duration(f.PageDelay)))
		defer stop()
		wait = reached
	default:
		return
	}
	select {
	case <-wait:
	case <-r.Context().Done():
		abort()
	case <-p.done:
		abort()
	}
}

// An engine that has to generate a token for its health looks for one that often, and gives up after so many looks.
const (
	healthLook  = time.Second
	healthLooks = 20
)

// generates asks for a token and says whether one was generated since, for whomever.
func (s *Server) generates(r *http.Request, p *process) bool {
	asked, before := s.cfg.Clock.Now(), p.generated()
	c, err := p.submit(enginemodel.Request{ID: p.newID(), PromptTokens: 1, OutputTokens: 1}, false)
	if err != nil {
		return false
	}
	defer p.leave(c)
	for i := range healthLooks {
		reached, stop := s.cfg.Clock.At(asked.Add(time.Duration(i+1) * healthLook))
		select {
		case <-reached:
		case <-r.Context().Done():
			stop()
			abort()
		case <-p.done:
			stop()
			abort()
		}
		stop()
		if p.generated() > before {
			return true
		}
	}
	return false
}

func (c Content) write(w http.ResponseWriter) {
	c.head(w, len(c.Body))
	// A client that has gone is noticed by whoever waits for it.
	_, _ = w.Write(c.Body)
}

// truncated writes the beginning of the content.
func (c Content) truncated(w http.ResponseWriter, t Truncation) {
	whole := len(c.Body)
	c.Body = c.Body[:t.Bytes]
	if t.Clean {
		c.write(w)
		return
	}
	c.head(w, whole)
	_, _ = w.Write(c.Body)
	_ = http.NewResponseController(w).Flush()
	abort()
}

func (c Content) head(w http.ResponseWriter, length int) {
	if c.ContentType != "" {
		w.Header().Set("Content-Type", c.ContentType)
	}
	w.Header().Set("Content-Length", strconv.Itoa(length))
	w.WriteHeader(max(c.Status, http.StatusOK))
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
