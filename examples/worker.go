// A complete worker in Go, with the standard library only.
//
//	go run examples/worker.go
//
// It serves the same step as worker.py: POST /thumbnail. Environment: PORT (9000), HEARTBEAT_SECONDS (5), and
// COUNTERFOIL_SIGNING_SECRET (whsec_...): if it is set, dispatches must be signed, and reports are signed too.
package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	maxBodyBytes      = 16 << 20
	tolerance         = 5 * time.Minute // how old, or how far ahead, the timestamp of a signature may be
	tries             = 10              // deliveries of one report, over about two minutes
	firstPause        = 500 * time.Millisecond
	longestPause      = 30 * time.Second
	longestRetryAfter = time.Hour
	rememberedResults = 1000
)

var (
	heartbeatEvery time.Duration
	signingKey     []byte // nil: signatures are neither checked nor made
	client         = &http.Client{
		Timeout:       10 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
)

type dispatch struct {
	Arguments map[string]any `json:"arguments"`
	Metadata  metadata       `json:"metadata"`
}

type metadata struct {
	FlowID         string `json:"flow_id"`
	StepID         string `json:"step_id"`
	ReceiptToken   string `json:"receipt_token"`
	WebhookURL     string `json:"webhook_url"`
	HeartbeatURL   string `json:"heartbeat_url"`
	Attempt        int    `json:"attempt"`
	IdempotencyKey string `json:"idempotency_key"` // the same in every attempt: pass it to the APIs that the work calls
}

type result struct {
	Success    bool           `json:"success"`
	Outputs    map[string]any `json:"outputs,omitempty"`
	Error      string         `json:"error,omitempty"`
	Retriable  bool           `json:"retriable,omitempty"`
	RetryAfter int            `json:"retry_after,omitempty"`
	Attempt    int            `json:"attempt"`
}

// answer is what the engine says to a report or a heartbeat.
type answer struct {
	Verdict         string `json:"verdict"`
	CancelRequested bool   `json:"cancel_requested"`
	Error           struct {
		Code string `json:"code"`
	} `json:"error"`
}

// ------------------------------------------------------------------------------------------ the work itself

// thumbnail does the work. The context is cancelled when the engine no longer needs the result.
func thumbnail(ctx context.Context, w *work) (result, error) {
	arguments := w.dispatch.Arguments
	image, isText := arguments["image"].(string)
	if !isText {
		return result{Error: "there is no image to make smaller"}, nil // permanent: a retry would not help
	}
	if busy, _ := arguments["busy"].(bool); busy && w.current().Attempt == 1 {
		return result{Error: "the renderer is busy", Retriable: true, RetryAfter: 1}, nil
	}
	seconds, isNumber := arguments["seconds"].(float64)
	if !isNumber {
		seconds = 2
	}
	for part := 1; part <= 4; part++ {
		if err := sleep(ctx, time.Duration(seconds*float64(time.Second)/4)); err != nil { // stands for the long work
			return result{}, err
		}
		w.setProgress(float64(part) / 4)
	}
	return result{Success: true, Outputs: map[string]any{"thumbnail": "small-" + image}}, nil
}

// ------------------------------------------------------------------------------------------ one work item

// work is one work item that runs. Its metadata changes when the same work is dispatched again.
type work struct {
	dispatch dispatch
	mutex    sync.Mutex
	progress float64
}

func (w *work) current() metadata {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.dispatch.Metadata
}

func (w *work) renew(newest metadata) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.dispatch.Metadata = newest
}

func (w *work) setProgress(progress float64) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.progress = progress
}

func (w *work) heartbeat() []byte {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return []byte(fmt.Sprintf(`{"progress": %g}`, w.progress))
}

// logf logs what happened to a work item. The receipt and the URLs that contain it are never logged.
func (w *work) logf(format string, values ...any) {
	m := w.current()
	log.Printf("flow %s, step %s, attempt %d: %s", m.FlowID, m.StepID, m.Attempt, fmt.Sprintf(format, values...))
}

// worker knows what runs, and the newest results by receipt: a production worker keeps those on disk.
type worker struct {
	mutex    sync.Mutex
	running  map[string]*work
	results  map[string]result
	receipts []string // of the results, oldest first
	group    sync.WaitGroup
}

// accept starts the work, unless it is running: the same work may be dispatched more than once.
func (all *worker) accept(d dispatch) {
	all.mutex.Lock()
	defer all.mutex.Unlock()
	receipt := d.Metadata.ReceiptToken
	if known, found := all.running[receipt]; found {
		known.renew(d.Metadata) // the report will carry the newest attempt
		known.logf("already running")
		return
	}
	w := &work{dispatch: d}
	all.running[receipt] = w
	all.group.Add(1)
	go func() {
		defer all.group.Done()
		for attempt := -1; !all.isFinished(receipt, w, attempt); {
			attempt = all.handle(receipt, w)
		}
	}()
}

// isFinished forgets the running work, unless a newer attempt arrived before the answer to the report of the last one.
func (all *worker) isFinished(receipt string, w *work, attempt int) bool {
	all.mutex.Lock()
	defer all.mutex.Unlock()
	if w.current().Attempt > attempt {
		return false
	}
	delete(all.running, receipt)
	return true
}

// handle runs the work and reports its result, and returns the attempt that it spoke for. A result that is known
// already is only reported again.
func (all *worker) handle(receipt string, w *work) int {
	all.mutex.Lock()
	res, known := all.results[receipt]
	all.mutex.Unlock()
	if !known {
		var wanted bool
		if res, wanted = runWithHeartbeats(w); !wanted {
			w.logf("cancelled")
			return w.current().Attempt
		}
		if !res.Retriable {
			all.remember(receipt, res)
		}
	}
	return report(w, res)
}

func (all *worker) remember(receipt string, res result) {
	all.mutex.Lock()
	defer all.mutex.Unlock()
	all.results[receipt] = res
	all.receipts = append(all.receipts, receipt)
	if len(all.receipts) > rememberedResults {
		delete(all.results, all.receipts[0])
		all.receipts = all.receipts[1:]
	}
}

// runWithHeartbeats runs the work, with heartbeats beside it; false if it was cancelled.
func runWithHeartbeats(w *work) (result, bool) {
	w.logf("started")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel() // also ends the heartbeats
	go func() {
		for sleep(ctx, heartbeatEvery) == nil {
			if !isWanted(ctx, w) {
				cancel()
			}
		}
	}()
	res, err := thumbnail(ctx, w)
	if err != nil && ctx.Err() != nil {
		return result{}, false
	}
	if err != nil {
		return result{Error: err.Error(), Retriable: true}, true // unexpected: let the engine try again
	}
	return res, true
}

// isWanted sends a heartbeat, which extends the deadline. A lost one does no harm: the next one follows soon.
func isWanted(ctx context.Context, w *work) bool {
	response, said, err := post(ctx, w.current().HeartbeatURL, w.heartbeat())
	if ctx.Err() != nil {
		return true // the work has ended meanwhile
	}
	if err != nil {
		w.logf("heartbeat lost: %v", err)
		return true
	}
	if response.StatusCode == http.StatusOK {
		return !said.CancelRequested
	}
	w.logf("heartbeat refused: %s", code(response, said))
	return response.StatusCode != 400 && response.StatusCode != 404 // these two: the work has ended, or is unknown
}

// ------------------------------------------------------------------------------------------ reporting

// report delivers the same result until the engine gives a final answer, and returns the attempt that it spoke for.
func report(w *work, res result) int {
	current := w.current()
	res.Attempt = current.Attempt
	body, err := json.Marshal(res)
	if err != nil { // outputs that are not JSON
		return report(w, result{Error: err.Error()})
	}
	for delivery := 1; delivery <= tries; delivery++ {
		var retryAfter time.Duration
		response, said, err := post(context.Background(), current.WebhookURL, body)
		switch {
		case err != nil:
			w.logf("delivery %d failed: %v", delivery, err)
		case response.StatusCode == http.StatusOK:
			w.logf("reported: %s", said.Verdict)
			return current.Attempt
		case isTemporary(response.StatusCode):
			w.logf("delivery %d failed: %s", delivery, code(response, said))
			retryAfter = parseRetryAfter(response.Header.Get("Retry-After"))
		default:
			w.logf("report refused: %s", code(response, said))
			if (response.StatusCode == 413 || response.StatusCode == 422) && res.Success {
				// The engine cannot take these outputs. A failed flow is better than one that waits for its deadline.
				report(w, result{Error: "the result was refused: " + code(response, said)})
			}
			return current.Attempt
		}
		if delivery < tries {
			time.Sleep(pause(delivery, retryAfter))
		}
	}
	w.logf("not reported: the engine dispatches the work again when its deadline has passed")
	return current.Attempt
}

func isTemporary(status int) bool {
	return status >= 500 || status == 408 || status == 425 || status == 429
}

// pause doubles; between half and all of it is used, so that many workers do not retry at the same moment.
func pause(failures int, retryAfter time.Duration) time.Duration {
	full := firstPause << (failures - 1)
	if full > longestPause {
		full = longestPause
	}
	random, err := rand.Int(rand.Reader, big.NewInt(int64(full/2)))
	if err == nil {
		full = full/2 + time.Duration(random.Int64())
	}
	if retryAfter > full {
		return retryAfter
	}
	return full
}

// parseRetryAfter reads a number of seconds or a date.
func parseRetryAfter(text string) time.Duration {
	var after time.Duration
	if seconds, err := strconv.Atoi(text); err == nil && seconds < 1_000_000 {
		after = time.Duration(seconds) * time.Second
	} else if moment, err := http.ParseTime(text); err == nil {
		after = time.Until(moment)
	}
	if after > longestRetryAfter {
		after = longestRetryAfter
	}
	return after
}

// post signs each delivery anew, because a signature is accepted for five minutes only.
func post(ctx context.Context, target string, body []byte) (*http.Response, answer, error) {
	var said answer
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return nil, said, errors.New("the URL is not valid")
	}
	request.Header.Set("Content-Type", "application/json")
	if signingKey != nil {
		random := make([]byte, 16)
		if _, err := rand.Read(random); err != nil {
			return nil, said, err
		}
		id, timestamp := "msg_"+hex.EncodeToString(random), strconv.FormatInt(time.Now().Unix(), 10)
		request.Header.Set("webhook-id", id)
		request.Header.Set("webhook-timestamp", timestamp)
		request.Header.Set("webhook-signature", sign(id, timestamp, body))
	}
	response, err := client.Do(request)
	var withURL *url.Error
	if errors.As(err, &withURL) {
		err = withURL.Err // the outer error contains the URL, and with it the receipt
	}
	if err != nil {
		return nil, said, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxBodyBytes))
	if err != nil {
		return nil, said, err
	}
	_ = json.Unmarshal(content, &said) // what is not JSON is not from the engine: a proxy's error page
	return response, said, nil
}

func code(response *http.Response, said answer) string {
	if said.Error.Code != "" {
		return said.Error.Code
	}
	return "HTTP " + strconv.Itoa(response.StatusCode)
}

// ------------------------------------------------------------------------------------------ signatures

// sign is Standard Webhooks: HMAC-SHA256 over <id>.<timestamp>.<body>.
func sign(id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, signingKey)
	fmt.Fprintf(mac, "%s.%s.", id, timestamp)
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// isAuthentic checks the signature over the bytes as received. The header may hold several, while a secret is replaced.
func isAuthentic(header http.Header, body []byte) bool {
	id, timestamp := header.Get("webhook-id"), header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if id == "" || err != nil {
		return false
	}
	age := time.Since(time.Unix(seconds, 0))
	if age > tolerance || age < -tolerance {
		return false
	}
	expected := []byte(sign(id, timestamp, body))
	for _, given := range strings.Fields(header.Get("webhook-signature")) {
		if hmac.Equal([]byte(given), expected) { // takes the same time wherever the two differ
			return true
		}
	}
	return false
}

// ------------------------------------------------------------------------------------------ the server

// ServeHTTP answers a dispatch. Work is only started here, never awaited.
func (all *worker) ServeHTTP(out http.ResponseWriter, request *http.Request) {
	if request.Method != http.MethodPost {
		respond(out, http.StatusMethodNotAllowed, map[string]any{"error": "use POST"})
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(out, request.Body, maxBodyBytes))
	if err != nil {
		respond(out, http.StatusRequestEntityTooLarge, map[string]any{"error": "the body is too large"})
		return
	}
	if signingKey != nil && !isAuthentic(request.Header, body) {
		respond(out, http.StatusUnauthorized, map[string]any{"error": "the signature is missing or wrong"})
		return
	}
	var d dispatch
	if err := json.Unmarshal(body, &d); err != nil || d.Metadata.WebhookURL == "" || d.Metadata.ReceiptToken == "" {
		respond(out, http.StatusBadRequest, map[string]any{"error": "this is not a dispatch of an async step"})
		return
	}
	all.accept(d)
	respond(out, http.StatusOK, map[string]any{"success": true})
}

func respond(out http.ResponseWriter, status int, body map[string]any) {
	out.Header().Set("Content-Type", "application/json")
	out.WriteHeader(status)
	_ = json.NewEncoder(out).Encode(body)
}

// sleep ends early, with an error, when the context is cancelled.
func sleep(ctx context.Context, duration time.Duration) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func setting(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func configure() error {
	seconds, err := strconv.ParseFloat(setting("HEARTBEAT_SECONDS", "5"), 64)
	if err != nil || seconds <= 0 {
		return errors.New("HEARTBEAT_SECONDS must be a positive number")
	}
	heartbeatEvery = time.Duration(seconds * float64(time.Second))
	if secret := os.Getenv("COUNTERFOIL_SIGNING_SECRET"); secret != "" {
		signingKey, err = base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		if err != nil || len(signingKey) == 0 || !strings.HasPrefix(secret, "whsec_") {
			return errors.New("COUNTERFOIL_SIGNING_SECRET must be whsec_ followed by base64")
		}
	}
	return nil
}

func main() {
	if err := configure(); err != nil {
		log.Fatal(err)
	}
	all := &worker{running: map[string]*work{}, results: map[string]result{}}
	routes := http.NewServeMux()
	routes.Handle("/thumbnail", all)
	server := &http.Server{Handler: routes, ReadHeaderTimeout: 10 * time.Second}
	listener, err := net.Listen("tcp", "127.0.0.1:"+setting("PORT", "9000"))
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("listening on http://%s", listener.Addr())

	stop, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	stopped := make(chan struct{})
	go func() {
		<-stop.Done()
		log.Print("stopping: running work is finished first")
		_ = server.Shutdown(context.Background()) // no new work; requests that are being answered are finished
		close(stopped)
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
	<-stopped
	all.group.Wait()
}
