package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// wait returns once the API server is ready, and the controller manager has made what every Pod needs: a ServiceAccount.
func wait(path, seconds string) error {
	folder, err := open(path)
	if err != nil {
		return err
	}
	limit, err := strconv.Atoi(seconds)
	if err != nil {
		return fmt.Errorf("read the number of seconds: %w", err)
	}
	return folder.until(time.Duration(limit)*time.Second, func(ctx context.Context, client *kubernetes.Clientset) error {
		if err := answers(ctx, client); err != nil {
			return err
		}
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// until asks the API server, as the administrator, until it likes the answer.
func (f folder) until(limit time.Duration, ask func(context.Context, *kubernetes.Clientset) error) error {
	config, err := clientcmd.BuildConfigFromFlags("", f.file("kubeconfig"))
	if err != nil {
		return err
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for {
		err := ask(ctx, client)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready after %v: %w", limit, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func answers(ctx context.Context, client *kubernetes.Clientset) error {
	return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}
