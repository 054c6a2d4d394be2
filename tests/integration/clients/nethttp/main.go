// Sends the requests that it reads from standard input with net/http, one after another, and prints the answers.
package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"os"
	"time"
)

type call struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	Body    []byte            `json:"body"`
	Chunked bool              `json:"chunked"`
	Expect  bool              `json:"expect"`
}

type answer struct {
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"`
	Body    []byte            `json:"body"`
}

func send(client *http.Client, each call) (answer, error) {
	var body io.Reader
	if each.Body != nil {
		body = bytes.NewReader(each.Body)
		if each.Chunked {
			body = io.MultiReader(body) // a reader whose length is not known
		}
	}
	request, err := http.NewRequest(each.Method, each.URL, body)
	if err != nil {
		return answer{}, err
	}
	for name, value := range each.Headers {
		request.Header.Set(name, value)
	}
	if each.Expect {
		request.Header.Set("Expect", "100-continue")
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	headers := map[string]string{}
	for name := range response.Header {
		headers[name] = response.Header.Get(name)
	}
	return answer{response.StatusCode, headers, content}, err
}

func main() {
	var calls []call
	if err := json.NewDecoder(os.Stdin).Decode(&calls); err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: 10 * time.Second}}
	answers := []answer{}
	for _, each := range calls {
		found, err := send(client, each)
		if err != nil {
			log.Fatal(err)
		}
		answers = append(answers, found)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		log.Fatal(err)
	}
}
